"""`solar-host resources` and `solar-host reservations`."""

from collections.abc import Mapping
from typing import Any

import click

from solarhost.commands.moments import Span
from solarhost.commands.names import find_id
from solarhost.commands.output import print_json, print_table, until
from solarhost.commands.remote import Remote, path, remote_command

BAR = 20


@click.command(name="resources")
@remote_command
def resources(remote: Remote, as_json: bool) -> None:
    """Show GPU memory, RAM and disk: used, promised, free (GiB)."""
    found = remote.get("/resources")
    if as_json:
        print_json(found)
        return
    rows = [_dimension(name.upper(), found[name]) for name in ("vram", "ram", "disk") if found[name]]
    rows += [_gpu(gpu) for gpu in found["gpus"]]
    print_table(("", "TOTAL", "USED", "RESERVED", "FREE", ""), rows, empty="Nothing is known.")
    if found["telemetry"]["gpu_problem"]:
        click.echo(f"GPU: {found['telemetry']['gpu_problem']}", err=True)
    if found["instance_charges"]:
        click.echo()
        charges = [
            (one["instance_id"][:8], one["gpu_ids"], one["vram_gb"], one["actual_vram_gb"])
            for one in found["instance_charges"]
        ]
        print_table(("INSTANCE", "GPUS", "VRAM", "ACTUAL"), charges, empty="")
    if found["reservations"]:
        click.echo()
        _print_reservations(found["reservations"])


@click.group(name="reservations")
def reservations() -> None:
    """Memory and disk that are held back for work to come."""


@reservations.command("ls")
@remote_command
def ls(remote: Remote, as_json: bool) -> None:
    """List all reservations."""
    found = remote.get("/resources")["reservations"]
    if as_json:
        print_json(found)
    else:
        _print_reservations(found)


@reservations.command()
@click.option("--job-id", required=True, help="The job that it is for.")
@click.option("--vram-gb", type=click.FloatRange(0), default=0.0, help="GiB on each GPU.")
@click.option("--ram-gb", type=click.FloatRange(0), default=0.0, help="GiB.")
@click.option("--disk-gb", type=click.FloatRange(0), default=0.0, help="GiB.")
@click.option("--gpu-count", type=click.IntRange(1), help="How many GPUs.")
@click.option("--gpu-ids", help="Which, with commas: 0,1.")
@click.option("--ttl", type=Span(), help="How long, such as 2h; else as the agent is set.")
@click.option(
    "--workload-type",
    type=click.Choice(["training", "inference", "other"]),
    default="training",
    show_default=True,
)
@click.option("--requester", help="Who asks.")
@remote_command
def create(
    remote: Remote, as_json: bool, gpu_count: int | None, gpu_ids: str | None, ttl: float | None, **asked: Any
) -> None:
    """Reserve; refused when it would not fit."""
    ids = [piece.strip() for piece in gpu_ids.split(",")] if gpu_ids else None
    body = {**asked, "gpu_ids": ids, "gpu_count": gpu_count or len(ids or [0]), "ttl_seconds": ttl}
    made = remote.call("POST", "/resources/reservations", body)
    if as_json:
        print_json(made)
    else:
        click.echo(made["id"])


@reservations.command()
@click.argument("reservation", metavar="ID")
@remote_command
def rm(remote: Remote, as_json: bool, reservation: str) -> None:
    """Give a reservation back; ID may be the unique beginning of one."""
    found = remote.get("/resources")["reservations"]
    answer = remote.call(
        "DELETE", path("resources", "reservations", find_id("reservation", reservation, found, "id"))
    )
    if as_json:
        print_json(answer)
    else:
        click.echo(f"{answer['id']} released")


def _print_reservations(found: list[Mapping[str, Any]]) -> None:
    keys = ("job_id", "status", "vram_gb", "ram_gb", "disk_gb", "gpu_ids")
    rows = [(one["id"][:8], *(one[key] for key in keys), until(one["expires_at"])) for one in found]
    columns = ("ID", "JOB", "STATUS", "VRAM", "RAM", "DISK", "GPUS", "UNTIL")
    print_table(columns, rows, empty="No reservations.")


def _dimension(name: str, figures: Mapping[str, Any]) -> tuple[object, ...]:
    total, free = figures["total_gb"], figures["available_gb"]
    return name, total, figures["system_used_gb"], figures["reserved_headroom_gb"], free, _bar(total, free)


def _gpu(gpu: Mapping[str, Any]) -> tuple[object, ...]:
    name = f"GPU {gpu['index']} {gpu['name'] or ''}"
    figures = {**gpu, "system_used_gb": gpu["used_gb"]}
    row = _dimension(name, figures)
    return (*row[:-1], gpu["problem"]) if gpu["problem"] else row


def _bar(total: float | None, free: float | None) -> str:
    """How much is used or promised."""
    if not total or free is None:
        return ""
    full = round(BAR * min(1.0, max(0.0, 1 - free / total)))
    return "█" * full + "░" * (BAR - full)
