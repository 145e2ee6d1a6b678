"""`solar-host doctor`: what works on this machine, and what to do about the rest."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import click
from rich.text import Text

from solarhost.commands.checks import host, outside, programs
from solarhost.commands.checks.finding import Finding, Level, red
from solarhost.commands.failures import FAILED
from solarhost.commands.output import console, plain, print_json
from solarhost.errors import SettingsError
from solarhost.settings import Settings, read

CHECKS: tuple[Callable[[Settings], list[Finding]], ...] = (
    host.check_settings,
    host.check_port,
    host.check_disk,
    host.check_folders,
    programs.check_llama_server,
    programs.check_torch,
    programs.check_nvml,
    programs.check_docker,
    outside.check_credentials,
    outside.check_control,
    programs.check_systemd,
)
MARKS = {Level.GREEN: "✓", Level.YELLOW: "!", Level.RED: "✗"}


@click.command(name="doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def doctor(as_json: bool) -> None:
    """Check this machine, one line a check; exit code 1 when one is red.

    Starts nothing and changes nothing. Green works or is not wanted, yellow is missing for something that
    you may want, red keeps the agent or what you configured from working.
    """
    findings = examine()
    if as_json:
        print_json(
            [
                {"check": one.subject, "level": one.level, "text": one.text, "next_step": one.next_step}
                for one in findings
            ]
        )
    else:
        for one in findings:
            _print(one)
    if any(one.level is Level.RED for one in findings):
        raise click.exceptions.Exit(FAILED)


def examine() -> list[Finding]:
    """All findings, in the order of the checks, which run at once."""
    try:
        settings = read()
    except SettingsError as error:
        return [red("settings", str(error), "set it right; the other checks need the settings")]
    with ThreadPoolExecutor(len(CHECKS), "check") as threads:
        results = [threads.submit(check, settings) for check in CHECKS]
    return [finding for result in results for finding in result.result()]


def _print(finding: Finding) -> None:
    line = Text(f"{MARKS[finding.level]} ", style=finding.level.value)
    line.append(f"{finding.subject}: ", style="bold")
    line.append(plain(finding.text))
    if finding.next_step:
        line.append(f" → {plain(finding.next_step)}", style=finding.level.value)
    console().print(line)
