"""Starting an instance, with a line that tells how far it is."""

import time
from contextlib import suppress
from typing import Any

import click
from rich.text import Text

from solarhost.commands.failures import CommandFailed
from solarhost.commands.output import console, plain
from solarhost.commands.remote import Remote, path
from solarhost.commands.slowcall import SlowCall

LOOK_S = 0.5
SPINNER = 2  # columns before the text


def start_instance(remote: Remote, instance_id: str, order: str = "start") -> dict[str, Any]:
    """Order a `start` or `restart` and wait until it is ready; returns the instance. Raises CommandFailed."""
    call = SlowCall(remote, "POST", path("instances", instance_id, order))
    call.start()
    try:
        _show_progress(remote, instance_id, call)
        started: dict[str, Any] = call.result()["instance"]
    except KeyboardInterrupt:
        click.echo(
            f"the {order} goes on; `solar-host instances stop {instance_id[:8]}` would end it", err=True
        )
        raise
    return started


def _show_progress(remote: Remote, instance_id: str, call: SlowCall) -> None:
    """One line on a terminal until the call is answered; elsewhere nothing."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        return
    began = time.monotonic()
    with screen.status("asking") as line:
        while call.is_alive():
            with suppress(CommandFailed):  # the call itself tells what is wrong
                text = _progress(remote, instance_id, time.monotonic() - began)
                text.truncate(screen.width - SPINNER, overflow="ellipsis")
                line.update(text)
            call.join(LOOK_S)


def _progress(remote: Remote, instance_id: str, elapsed_s: float) -> Text:
    one = remote.get(path("instances", instance_id))
    log = remote.get(path("instances", instance_id, "logs"), {"tail": 1})
    attempt = f", retry {one['retry_count']}" if one["retry_count"] else ""
    text = Text(f"{plain(one['config']['alias'])} {one['status']}{attempt}, {elapsed_s:.0f} s")
    if log:
        text.append(f"  {plain(log[-1]['line'])}", style="dim")
    return text
