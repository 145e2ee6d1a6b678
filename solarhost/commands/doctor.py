"""`solar-host doctor`: what works on this machine, and what to do about the rest."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread

import click
from rich.text import Text

from solarhost.commands.checks import host, outside, programs
from solarhost.commands.checks.finding import Finding, Level, red
from solarhost.commands.failures import FAILED
from solarhost.commands.output import console, plain, print_json
from solarhost.errors import SettingsError
from solarhost.settings import Settings, read

Check = Callable[[Settings], list[Finding]]

CHECKS: tuple[Check, ...] = (
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
    findings = examine((lambda _: None) if as_json else _print)
    if as_json:
        print_json(
            [
                {"check": one.subject, "level": one.level, "text": one.text, "next_step": one.next_step}
                for one in findings
            ]
        )
    if any(one.level is Level.RED for one in findings):
        raise click.exceptions.Exit(FAILED)


def examine(tell: Callable[[Finding], None]) -> list[Finding]:
    """All findings, in the order of the checks.

    These run at once, and `tell` hears of each finding as soon as those before it are known.
    """
    try:
        settings = read()
    except SettingsError as error:
        finding = red("settings", str(error), "set it right; the other checks need the settings")
        tell(finding)
        return [finding]
    results = [_begin(check, settings) for check in CHECKS]
    findings = []
    for result in results:
        for finding in result.result():
            tell(finding)
            findings.append(finding)
    return findings


def _begin(check: Check, settings: Settings) -> Future[list[Finding]]:
    """In a daemon thread, so that Ctrl-C need not wait for one that hangs."""
    result: Future[list[Finding]] = Future()

    def work() -> None:
        found = [red(check.__name__, "the check itself failed, see above", "report that as a fault")]
        try:
            found = check(settings)
        finally:
            result.set_result(found)

    Thread(target=work, name=check.__name__, daemon=True).start()
    return result


def _print(finding: Finding) -> None:
    line = Text(f"{MARKS[finding.level]} ", style=finding.level.value)
    line.append(f"{finding.subject}: ", style="bold")
    line.append(plain(finding.text))
    if finding.next_step:
        line.append(f" → {plain(finding.next_step)}", style=finding.level.value)
    console().print(line)
