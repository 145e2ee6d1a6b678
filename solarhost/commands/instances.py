"""`solar-host instances`: model servers."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import click
from rich.live import Live

from solarhost.commands.failures import CommandFailed, NoSuchThing
from solarhost.commands.instance_config import CONFIG_FLAGS, request_body
from solarhost.commands.instance_logs import follow, read
from solarhost.commands.moments import Moment, Since
from solarhost.commands.names import find_instance
from solarhost.commands.output import (
    age,
    console,
    print_fields,
    print_json,
    print_table,
    table,
)
from solarhost.commands.remote import Remote, path, remote_command

TOP_COLUMNS = ("ALIAS", "STATUS", "PORT", "PHASE", "SLOTS", "TOK/S", "PROMPT", "GENERATED", "WAITING")


@click.group(name="instances")
def instances() -> None:
    """Model servers: list, create, start, watch, stop.

    NAME is an id, the unique beginning of one, or a unique alias.
    """


@instances.command("ls")
@remote_command
def ls(remote: Remote, as_json: bool) -> None:
    """List all instances."""
    found = remote.get("/instances")
    if as_json:
        print_json(found)
        return
    rows = [
        (
            one["id"][:8],
            one["config"]["alias"],
            one["config"]["backend_type"],
            one["status"],
            one["reason"],
            one["port"],
            age(one["started_at"]) if one["pid"] else None,
        )
        for one in found
    ]
    columns = ("ID", "ALIAS", "BACKEND", "STATUS", "REASON", "PORT", "UP")
    print_table(columns, rows, empty="No instances; `solar-host instances create` makes one.")


@instances.command()
@click.argument("name")
@remote_command
def show(remote: Remote, as_json: bool, name: str) -> None:
    """Show one instance with its config and what it does."""
    one = find_instance(remote, name)
    if as_json:
        print_json(one)
        return
    config = {key: "set" if key == "api_key" and value else value for key, value in one["config"].items()}
    print_fields((key, value) for key, value in one.items() if key != "config")
    click.echo("\nconfig")
    print_fields((f"  {key}", value) for key, value in config.items())


@instances.command(context_settings=CONFIG_FLAGS)
@click.option("-f", "--file", "source", type=click.File(), help="JSON or YAML file, `-` for stdin.")
@click.option("--start", "start_it", is_flag=True, help="Start it, too.")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[--FIELD VALUE]...")
@remote_command
def create(remote: Remote, as_json: bool, source: Any, start_it: bool, flags: tuple[str, ...]) -> None:
    """Create an instance from a file, from flags, or from a file and flags that change it.

    A flag is a field of the config: --alias chat --model ./m.gguf --ctx-size 4096. A list is the flag
    several times; a value that begins with dashes is written --extra-args=--verbose.
    """
    answer = remote.call("POST", "/instances", request_body(source, flags))
    made = answer["instance"]
    for warning in answer.get("warnings", ()):
        click.echo(f"Warning: {warning}", err=True)
    if start_it:
        if not as_json:
            click.echo(f"created {made['id']}")
        made = remote.call("POST", path("instances", made["id"], "start"), answer_s=None)["instance"]
    if as_json:
        print_json(made)
    else:
        click.echo(f"{made['config']['alias']} runs on port {made['port']}" if start_it else made["id"])


@instances.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@remote_command
def start(remote: Remote, as_json: bool, names: tuple[str, ...]) -> None:
    """Start, and wait until it is ready or has failed."""
    _each(names, as_json, lambda name: _order(remote, name, "start"), "started")


@instances.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@remote_command
def stop(remote: Remote, as_json: bool, names: tuple[str, ...]) -> None:
    """Stop, and wait until none of its processes is alive."""
    _each(names, as_json, lambda name: _order(remote, name, "stop"), "stopped")


@instances.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@remote_command
def restart(remote: Remote, as_json: bool, names: tuple[str, ...]) -> None:
    """Stop it if it runs, then start it."""
    _each(names, as_json, lambda name: _order(remote, name, "restart"), "restarted")


@instances.command()
@click.option("-f", "--force", is_flag=True, help="Stop it first.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@remote_command
def rm(remote: Remote, as_json: bool, names: tuple[str, ...], force: bool) -> None:
    """Remove stopped instances; their log files stay for a while."""

    def remove(name: str) -> Mapping[str, Any]:
        one = find_instance(remote, name)
        if force:
            remote.call("POST", path("instances", one["id"], "stop"), answer_s=None)
        elif one["status"] not in ("stopped", "failed"):
            raise CommandFailed(f"{name} is {one['status']}", "stop it first, or give --force")
        return dict(remote.call("DELETE", path("instances", one["id"]))["instance"])

    _each(names, as_json, remove, "removed")


@instances.command()
@click.option("-f", "--follow", "follows", is_flag=True, help="Go on with each new line, until Ctrl-C.")
@click.option("--since", type=Moment(), help="A line's number, a time, or a span such as 10m or 2h.")
@click.option("--tail", type=click.IntRange(0), help="At most so many lines, the newest.")
@click.option("-t", "--timestamps", is_flag=True, help="Show when each line came.")
@click.argument("name")
@remote_command
def logs(
    remote: Remote,
    as_json: bool,
    name: str,
    follows: bool,
    since: Since | None,
    tail: int | None,
    timestamps: bool,
) -> None:
    """Print the log. With --json each line is an object of its own."""
    source = follow if follows else read
    source(remote, name, since, tail).print(as_json=as_json, timestamps=timestamps)


@instances.command()
@click.option("--interval", type=click.FloatRange(0.2), default=2.0, show_default=True, help="Seconds.")
@click.option("--once", is_flag=True, help="Print once and end, as without a terminal.")
@remote_command
def top(remote: Remote, as_json: bool, interval: float, once: bool) -> None:
    """Show what the instances are doing, until Ctrl-C."""
    screen = console()
    if as_json:
        print_json(_activity(remote))
    elif once or not screen.is_terminal:
        screen.print(table(TOP_COLUMNS, _top_rows(_activity(remote))))
    else:
        with Live(console=screen, auto_refresh=False, screen=True) as live:
            while True:
                live.update(table(TOP_COLUMNS, _top_rows(_activity(remote))), refresh=True)
                time.sleep(interval)


def _order(remote: Remote, name: str, what: str) -> Mapping[str, Any]:
    one = find_instance(remote, name)
    return dict(remote.call("POST", path("instances", one["id"], what), answer_s=None)["instance"])


def _each(names: Sequence[str], as_json: bool, work: Callable[[str], Mapping[str, Any]], done: str) -> None:
    """One after the other; a failure is told and the rest is done, and its exit code is the command's."""
    results, failed = [], None
    for name in names:
        try:
            results.append(work(name))
        except CommandFailed as error:
            if len(names) == 1:
                raise
            error.show()
            failed = failed or error
        else:
            if not as_json:
                click.echo(f"{name} {done}")
    if as_json:
        print_json(results)
    if failed is not None:
        raise click.exceptions.Exit(failed.exit_code)


def _activity(remote: Remote) -> list[dict[str, Any]]:
    """All instances, those that run with their state and counters."""
    found = []
    for one in remote.get("/instances"):
        state = usage = None
        if one["status"] == "running":
            with suppress(NoSuchThing):  # it was removed a moment ago
                state = remote.get(path("instances", one["id"], "state"))
                usage = remote.get(path("instances", one["id"], "usage"))
        basics = {key: one[key] for key in ("id", "status", "port")}
        found.append({**basics, "alias": one["config"]["alias"], "state": state, "usage": usage})
    return found


def _top_rows(activity: Sequence[Mapping[str, Any]]) -> list[Sequence[object]]:
    rows: list[Sequence[object]] = []
    for one in activity:
        state, usage = one["state"] or {}, one["usage"] or {}
        speed = state.get("decode_tps")
        rows.append(
            (
                one["alias"],
                one["status"],
                one["port"],
                state.get("phase"),
                state.get("active_slots"),
                None if speed is None else f"{speed:.1f}",
                usage.get("prompt_tokens_total"),
                usage.get("generated_tokens_total"),
                usage.get("requests_deferred"),
            )
        )
    return rows
