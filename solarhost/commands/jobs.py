"""`solar-host jobs`: pipelines of containers."""

import sys
import time
from collections.abc import Iterator
from typing import Any

import click

from solarhost.commands.failures import FAILED, NoSuchThing
from solarhost.commands.following import Entry, followed
from solarhost.commands.instance_config import read_document
from solarhost.commands.names import find_id
from solarhost.commands.output import age, plain, print_fields, print_json, print_json_line, print_table
from solarhost.commands.remote import Remote, path, remote_command

LOOK_S = 0.5
ENDED = ("completed", "failed", "cancelled")


@click.group(name="jobs")
def jobs() -> None:
    """Jobs: list, submit, watch, cancel. ID may be the unique beginning of one."""


@jobs.command("ls")
@remote_command
def ls(remote: Remote, as_json: bool) -> None:
    """List all jobs."""
    found = remote.get("/jobs")
    if as_json:
        print_json(found)
        return
    rows = [
        (
            one["job_id"],
            one["name"],
            one["status"],
            f"{sum(step['status'] == 'completed' for step in one['steps'])}/{len(one['steps'])}",
            age(one["created_at"]),
        )
        for one in found
    ]
    print_table(("ID", "NAME", "STATUS", "STEPS", "AGE"), rows, empty="No jobs.")


@jobs.command()
@click.argument("job", metavar="ID")
@remote_command
def show(remote: Remote, as_json: bool, job: str) -> None:
    """Show one job and its steps."""
    found = _get(remote, _find(remote, job))
    if as_json:
        print_json(found)
        return
    print_fields((key, value) for key, value in found.items() if key != "steps")
    click.echo()
    rows = [
        (step["name"], step["status"], step["exit_code"], step["duration_s"], step["error_message"])
        for step in found["steps"]
    ]
    print_table(("STEP", "STATUS", "EXIT", "SECONDS", "ERROR"), rows, empty="No steps.")


@jobs.command()
@click.option("-f", "--file", "source", type=click.File(), required=True, help="JSON or YAML, `-` for stdin.")
@remote_command
def submit(remote: Remote, as_json: bool, source: Any) -> None:
    """Submit a job from a file."""
    answer = remote.call("POST", "/jobs", read_document(source))
    if as_json:
        print_json(answer)
    else:
        click.echo(answer["job_id"])


@jobs.command()
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends; a failed one is exit code 1.")
@click.option("--step", metavar="NAME", help="Of this step only.")
@click.option("--tail", type=click.IntRange(0), help="Begin so many lines before the end of each step.")
@click.argument("job", metavar="ID")
@remote_command
def logs(remote: Remote, as_json: bool, job: str, follow: bool, step: str | None, tail: int | None) -> None:
    """Print all that the steps of a job have printed."""
    job_id = _find(remote, job)
    found = _get(remote, job_id)
    names = [one["name"] for one in found["steps"]]
    if step is not None and step not in names:
        raise NoSuchThing(f"job {job_id} has no step {step}; it has {', '.join(names)}")
    for name in names if step is None else [step]:
        for entry in _lines(remote, job_id, name, tail=tail, follow=follow):
            if as_json:
                print_json_line({"step": name, **entry})
            else:
                prefix = f"{plain(name)} | " if len(names) > 1 else ""
                click.echo(f"{prefix}{plain(entry['line'])}")
            sys.stdout.flush()
    if follow:
        _tell_end(remote, job_id)


@jobs.command()
@click.argument("job", metavar="ID")
@remote_command
def cancel(remote: Remote, as_json: bool, job: str) -> None:
    """Cancel a job; its containers and its workspace are gone when this returns."""
    answer = remote.call("DELETE", path("jobs", _find(remote, job)))
    if as_json:
        print_json(answer)
    else:
        click.echo(f"{answer['job_id']} cancelled")


def _find(remote: Remote, job: str) -> str:
    return find_id("job", job, remote.get("/jobs"), "job_id")


def _get(remote: Remote, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = remote.get(path("jobs", job_id))
    return found


def _lines(remote: Remote, job_id: str, step: str, *, tail: int | None, follow: bool) -> Iterator[Entry]:
    """Lines of a step's log, from its beginning or from `tail` lines before its end: until it is over, or
    those that are there now."""
    address = path("jobs", job_id, "steps", step, "logs")
    last = next((line["seq"] for line in remote.get(address, {"tail": 1})), 0)
    since = 0 if tail is None else max(0, last - tail)
    if not follow and since >= last:
        return
    for entry in followed(remote, address, {"since": since}, f"the job {job_id} is not there any more"):
        yield entry
        if not follow and entry["seq"] >= last:
            return


def _tell_end(remote: Remote, job_id: str) -> None:
    """How it ended, as the last line and as the exit code."""
    while (found := _get(remote, job_id))["status"] not in ENDED:
        time.sleep(LOOK_S)
    reason = f": {plain(found['error_message'])}" if found["error_message"] else ""
    click.echo(f"{found['status']}{reason}", err=True)
    if found["status"] != "completed":
        raise click.exceptions.Exit(FAILED)
