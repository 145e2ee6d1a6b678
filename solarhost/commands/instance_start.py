"""Starting an instance, with a line that tells how far it is."""

import time
from contextlib import suppress
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from solarhost.commands.failures import CommandFailed
from solarhost.commands.names import called
from solarhost.commands.output import console, plain, tell_warnings
from solarhost.commands.remote import Remote, path
from solarhost.commands.slowcall import SlowCall

LOOK_S = 0.5
SPINNER = 2  # columns before the text


def start_instance(remote: Remote, instance_id: str, name: str, order: str = "start") -> dict[str, Any]:
    """Order a `start` or `restart` and wait until it is ready; returns the instance.

    Raises:
        CommandFailed: speaks of the instance by `name`.
    """
    with called(name, instance_id):
        return _start(remote, instance_id, name, order)


def _start(remote: Remote, instance_id: str, name: str, order: str) -> dict[str, Any]:
    screen = console(stderr=True)
    seen = _last_seq(remote, instance_id) if screen.is_terminal else 0
    call = SlowCall(remote, "POST", path("instances", instance_id, order))
    call.start()
    try:
        if screen.is_terminal:
            _show_progress(screen, remote, instance_id, seen, call)
        answer = call.result()
    except KeyboardInterrupt:
        click.echo(f"the {order} goes on; `solar-host instances stop {name}` would end it", err=True)
        raise
    tell_warnings(answer)
    return dict(answer["instance"])


def _show_progress(screen: Console, remote: Remote, instance_id: str, seen: int, call: SlowCall) -> None:
    """One line until the call is answered, with the newest line of the log after the number `seen`."""
    began = time.monotonic()
    with screen.status("asking") as line:
        while call.is_alive():
            with suppress(CommandFailed):  # the call itself tells what is wrong
                text = _progress(remote, instance_id, seen, time.monotonic() - began)
                text.truncate(screen.width - SPINNER, overflow="ellipsis")
                line.update(text)
            call.join(LOOK_S)


def _progress(remote: Remote, instance_id: str, seen: int, elapsed_s: float) -> Text:
    one = remote.get(path("instances", instance_id))
    log = remote.get(path("instances", instance_id, "logs"), {"tail": 1})
    attempt = f", retry {one['retry_count']}" if one["retry_count"] else ""
    text = Text(f"{plain(one['config']['alias'])} {one['status']}{attempt}, {elapsed_s:.0f} s")
    if log and log[-1]["seq"] > seen:
        text.append(f"  {plain(log[-1]['line'])}", style="dim")
    return text


def _last_seq(remote: Remote, instance_id: str) -> int:
    """The number of the newest line of its log; 0 without one."""
    seq = 0
    with suppress(CommandFailed):  # it never ran, or its log is gone
        for entry in remote.get(path("instances", instance_id, "logs"), {"tail": 1}):
            seq = entry["seq"]
    return seq
