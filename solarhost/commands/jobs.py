"""`solar-host jobs`: pipelines of containers."""

import time
from collections.abc import Mapping
from typing import Any

import click

from solarhost.commands.failures import FAILED
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
@click.argument("job", metavar="ID")
@remote_command
def logs(remote: Remote, as_json: bool, job: str, follow: bool) -> None:
    """Print the newest lines of each step (100); all of them are in the files that `show --json` names."""
    job_id = _find(remote, job)
    seen: dict[str, int] = {}
    while True:
        found = _get(remote, job_id)
        for step in found["steps"]:
            _print_news(step, seen, as_json=as_json, several=len(found["steps"]) > 1)
        if not follow or found["status"] in ENDED:
            break
        time.sleep(LOOK_S)
    if follow:
        click.echo(
            f"{found['status']}{': ' + plain(found['error_message']) if found['error_message'] else ''}",
            err=True,
        )
        if found["status"] != "completed":
            raise click.exceptions.Exit(FAILED)


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


def _print_news(step: Mapping[str, Any], seen: dict[str, int], *, as_json: bool, several: bool) -> None:
    """The lines of a step that were not printed yet; what was missed between two looks is told."""
    name = step["name"]
    for entry in step["recent_logs"]:
        if entry["seq"] <= seen.get(name, 0):
            continue
        missed = entry["seq"] - seen.get(name, 0) - 1
        if missed:
            click.echo(f"({missed} lines of {plain(name)} are only in {plain(step['log_file'])})", err=True)
        seen[name] = entry["seq"]
        if as_json:
            print_json_line({"step": name, **entry})
        else:
            click.echo(f"{plain(name)} | {plain(entry['line'])}" if several else plain(entry["line"]))
