"""What `solar-host` and `python -m solarhost` run."""

import os
import signal

# What follows takes a second to import, and Ctrl-C shall be as quiet then as it is later.
# 130 is 128 + SIGINT, as shells have it.
signal.signal(signal.SIGINT, lambda *_: os._exit(130))

from solarhost.cli import main  # noqa: E402

if __name__ == "__main__":
    main(prog_name="solar-host")
