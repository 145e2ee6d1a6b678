"""`solar-host instances`: model servers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from rich.live import Live

from solarhost.commands.completion import instance_names
from solarhost.commands.failures import BadInput, CommandFailed
from solarhost.commands.instance_activity import activity, activity_fields, activity_table
from solarhost.commands.instance_config import CONFIG_FLAGS, ConfigCommand, request_body
from solarhost.commands.instance_logs import follow, read
from solarhost.commands.instance_start import start_instance
from solarhost.commands.keys import pressed_keys
from solarhost.commands.moments import Moment, Since
from solarhost.commands.names import called, find_instance
from solarhost.commands.output import age, console, print_fields, print_json, print_table, tell_warnings
from solarhost.commands.remote import Remote, path, remote_command


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
@click.argument("name", shell_complete=instance_names)
@remote_command
def show(remote: Remote, as_json: bool, name: str) -> None:
    """Show one instance with its config and what it does."""
    one = find_instance(remote, name)
    if as_json:
        print_json(one)
        return
    config = {key: "set" if key == "api_key" and value else value for key, value in one["config"].items()}
    print_fields((key, value) for key, value in one.items() if key != "config")
    if one["status"] == "running":
        click.echo("\nactivity")
        print_fields((f"  {key}", value) for key, value in activity_fields(remote, one["id"]))
    click.echo("\nconfig")
    print_fields((f"  {key}", value) for key, value in config.items())


@instances.command(cls=ConfigCommand, context_settings=CONFIG_FLAGS)
@click.option("-f", "--file", "source", type=click.File(), help="JSON or YAML file, `-` for stdin.")
@click.option("--start", "start_it", is_flag=True, help="Start it, too.")
@click.option("--allow-unknown", is_flag=True, help="Also flags that are no field that is known here.")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[--FIELD VALUE]...")
@remote_command
def create(
    remote: Remote, as_json: bool, source: Any, start_it: bool, allow_unknown: bool, flags: tuple[str, ...]
) -> None:
    """Create an instance from a file, from flags, or from a file and flags that change it.

    A flag is a field of the config: --alias chat --model ./m.gguf --ctx-size 4096. A list is the flag
    several times; a value that begins with dashes is written --extra-args=--verbose.

    Of HuggingFace models --backend-type says what they do: huggingface_causal, huggingface_classification,
    huggingface_embedding or huggingface_vision; --model-id is the folder or the name on the hub. All
    fields are in docs/llamacpp.md and docs/huggingface.md.
    """
    body = request_body(source, flags, allow_unknown=allow_unknown)
    if not body["config"]:
        raise BadInput("nothing says what to create", "give -f FILE, or flags such as --alias and --model")
    answer = remote.call("POST", "/instances", body)
    made = answer["instance"]
    tell_warnings(answer)
    if start_it:
        if not as_json:
            click.echo(f"created {made['id']}")
        made = start_instance(remote, made["id"], made["config"]["alias"])
    if as_json:
        print_json(made)
    else:
        click.echo(f"{made['config']['alias']} runs on port {made['port']}" if start_it else made["id"])


@instances.command(cls=ConfigCommand, context_settings=CONFIG_FLAGS)
@click.option("-f", "--file", "source", type=click.File(), help="JSON or YAML file, `-` for stdin.")
@click.argument("name", shell_complete=instance_names)
@click.option("--allow-unknown", is_flag=True, help="Also flags that are no field that is known here.")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[--FIELD VALUE]...")
@remote_command
def update(
    remote: Remote, as_json: bool, source: Any, name: str, allow_unknown: bool, flags: tuple[str, ...]
) -> None:
    """Change a stopped instance: the fields that are given, the others stay.

    An empty value, written --FIELD=, takes a field back to its default.
    """
    one = find_instance(remote, name)
    changes = request_body(source, flags, allow_unknown=allow_unknown)
    if changes == {"config": {}}:
        raise BadInput("nothing says what to change", "give -f FILE, or flags such as --ctx-size")
    body = {**changes, "config": {**one["config"], **changes["config"]}}
    with called(name, one["id"]):
        answer = remote.call("PUT", path("instances", one["id"]), body)
    tell_warnings(answer)
    if as_json:
        print_json(answer["instance"])
    else:
        click.echo(f"{name} updated")


@instances.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=instance_names)
@remote_command
def start(remote: Remote, as_json: bool, names: tuple[str, ...]) -> None:
    """Start, and wait until it is ready or has failed."""

    def started(name: str) -> Mapping[str, Any]:
        return start_instance(remote, find_instance(remote, name)["id"], name)

    _each(names, as_json, started, "runs on port {port}")


@instances.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=instance_names)
@remote_command
def stop(remote: Remote, as_json: bool, names: tuple[str, ...]) -> None:
    """Stop, and wait until none of its processes is alive."""

    def stopped(name: str) -> Mapping[str, Any]:
        return _stop(remote, find_instance(remote, name)["id"], name)

    _each(names, as_json, stopped, "stopped")


@instances.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=instance_names)
@remote_command
def restart(remote: Remote, as_json: bool, names: tuple[str, ...]) -> None:
    """Stop it if it runs, then start it."""

    def restarted(name: str) -> Mapping[str, Any]:
        return start_instance(remote, find_instance(remote, name)["id"], name, "restart")

    _each(names, as_json, restarted, "runs on port {port}")


@instances.command()
@click.option("-f", "--force", is_flag=True, help="Stop it first.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=instance_names)
@remote_command
def rm(remote: Remote, as_json: bool, names: tuple[str, ...], force: bool) -> None:
    """Remove stopped instances; their log files stay for a while."""

    def remove(name: str) -> Mapping[str, Any]:
        one = find_instance(remote, name)
        if force:
            _stop(remote, one["id"], name)
        elif one["status"] not in ("stopped", "failed"):
            raise CommandFailed(f"{name} is {one['status']}", "stop it first, or give --force")
        return dict(remote.call("DELETE", path("instances", one["id"]))["instance"])

    _each(names, as_json, remove, "removed")


@instances.command()
@click.option("-f", "--follow", "follows", is_flag=True, help="Go on with each new line, until Ctrl-C.")
@click.option("--since", type=Moment(), help="A line's number, a time, or a span such as 10m or 2h.")
@click.option("--tail", type=click.IntRange(0), help="At most so many lines, the newest.")
@click.option("-t", "--timestamps", is_flag=True, help="Show when each line came.")
@click.argument("name", shell_complete=instance_names)
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
    """Show what the instances are doing, until q or Ctrl-C."""
    screen = console()
    if as_json:
        print_json(activity(remote))
    elif once or not screen.is_terminal:
        screen.print(activity_table(activity(remote)))
    else:
        with Live(console=screen, auto_refresh=False, screen=True) as live, pressed_keys() as pressed:
            live.update(activity_table(activity(remote)), refresh=True)
            while b"q" not in pressed(interval):
                live.update(activity_table(activity(remote)), refresh=True)


def _stop(remote: Remote, instance_id: str, name: str) -> Mapping[str, Any]:
    with called(name, instance_id):
        answer = remote.call("POST", path("instances", instance_id, "stop"), answer_s=None)
    tell_warnings(answer)
    return dict(answer["instance"])


def _each(names: Sequence[str], as_json: bool, work: Callable[[str], Mapping[str, Any]], done: str) -> None:
    """One after the other; a failure is told and the rest is done, and its exit code is the command's.

    `done` says what was done, with fields of the instance in braces.
    """
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
                click.echo(f"{name} {done.format_map(results[-1])}")
    if as_json:
        print_json(results)
    if failed is not None:
        raise click.exceptions.Exit(failed.exit_code)
