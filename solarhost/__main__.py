"""`python -m solarhost` is `solar-host`."""

from solarhost.cli import main

main(prog_name="solar-host")
