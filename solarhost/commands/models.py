"""`solar-host models`: what is on disk, and pulls."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from solarhost.commands.failures import BadInput, CommandFailed
from solarhost.commands.names import find_id
from solarhost.commands.output import age, console, plain, print_json, print_table, size
from solarhost.commands.remote import Remote, path, remote_command
from solarhost.commands.slowcall import SlowCall

LOOK_S = 0.5


@click.group(name="models")
def models() -> None:
    """Models on disk: list, pull, remove."""


@models.command("ls")
@remote_command
def ls(remote: Remote, as_json: bool) -> None:
    """List the models on disk."""
    found = remote.get("/models")
    if as_json:
        print_json(found)
        return
    rows = [
        (
            one["name"],
            one["source_uri"],
            size(one["size_bytes"]),
            len(one["files"]),
            age(one["downloaded_at"]),
        )
        for one in found
    ]
    print_table(
        ("NAME", "SOURCE", "SIZE", "FILES", "AGE"),
        rows,
        empty="No models; `solar-host models pull` gets one.",
    )


@models.command()
@click.argument("source")
@click.option("--include", multiple=True, metavar="PATTERN", help="Only such files, for instance '*Q4_K_M*'.")
@click.option("--backend", help="Only what this backend needs, such as llamacpp.")
@click.option("--ref", help="Where a repo:// artifact is in the registry: project/name:tag.")
@remote_command
def pull(
    remote: Remote, as_json: bool, source: str, include: tuple[str, ...], backend: str | None, ref: str | None
) -> None:
    """Pull a model: huggingface://ORG/MODEL, ORG/MODEL, or repo://NAME:VERSION with --ref.

    Ctrl-C cancels the pull, unless it was running already.
    """
    body = _request(source, include, backend, ref)
    uri = body["source_uri"]
    running = _find_pull(remote, uri)
    call = SlowCall(remote, "POST", "/models/pull", body)
    call.start()
    try:
        _show_progress(remote, uri, call)
    except KeyboardInterrupt:
        _cancel(remote, uri, None if running is None else running["id"])
        raise
    answer = call.result()
    if as_json:
        print_json(answer)
    else:
        click.echo(f"{answer['path']}{' (it was here already)' if answer['cached'] else ''}")


@models.command()
@remote_command
def pulls(remote: Remote, as_json: bool) -> None:
    """List the pulls that run or wait for their turn."""
    found = remote.get("/models/pulls")
    if as_json:
        print_json(found)
        return
    rows = [
        (
            one["id"][:8],
            one["source_uri"],
            f"{_phase(one)}: {one['trouble']}" if one["trouble"] else _phase(one),
            _share(one),
            size(one["bytes_done"]),
            _speed(one),
        )
        for one in found
    ]
    print_table(("ID", "SOURCE", "PHASE", "DONE", "BYTES", "SPEED"), rows, empty="No pulls.")


@models.command()
@click.argument("pull_id", metavar="ID")
@remote_command
def cancel(remote: Remote, as_json: bool, pull_id: str) -> None:
    """Cancel a pull, by its ID (or the beginning of it) or its source."""
    running = _find_pull(remote, pull_id)
    found = running["id"] if running else find_id("pull", pull_id, remote.get("/models/pulls"), "id")
    answer = remote.call("DELETE", path("models", "pulls", found), answer_s=None)
    if as_json:
        print_json(answer)
    else:
        click.echo(f"{found} cancelled")


@models.command()
@click.argument("name")
@click.option("--include", multiple=True, metavar="PATTERN", help="Remove only such files.")
@remote_command
def rm(remote: Remote, as_json: bool, name: str, include: tuple[str, ...]) -> None:
    """Remove a model, by its NAME (or the beginning of it) or its source."""
    found = remote.get("/models")
    slug = next((one["name"] for one in found if one["source_uri"] == name), None)
    slug = slug or find_id("model", name, found, "name")
    answer = remote.call("DELETE", path("models", slug), {"filters": list(include) or None}, answer_s=None)
    if as_json:
        print_json(answer)
    else:
        click.echo(f"{slug}: {len(answer['removed'])} files removed, {size(answer['freed_bytes'])} freed")


def _request(source: str, include: tuple[str, ...], backend: str | None, ref: str | None) -> dict[str, Any]:
    common = {"file_filters": list(include) or None, "backend_type": backend}
    if source.startswith("repo://"):
        if ref is None:
            raise BadInput("a repo:// source needs --ref", "say where it is: --ref project/name:tag")
        return {"source": "harbor", "source_uri": source, "harbor_ref": ref, **common}
    if ref is not None:
        raise BadInput("--ref is for repo:// sources")
    if source.startswith(("local://", "/", ".", "~")):
        raise BadInput(
            f"{source!r} is a place on this machine; there is nothing to pull",
            "a path goes to an instance as --model (GGUF) or --model-id (HuggingFace), "
            "local://PATH inside MODELS_DIR as --model-source",
        )
    model_id = source.removeprefix("huggingface://")
    if "://" in model_id:
        raise BadInput(f"{source!r} is no source of models", "huggingface://ORG/MODEL or repo://NAME:VERSION")
    return {
        "source": "huggingface",
        "source_uri": f"huggingface://{model_id}",
        "model_id": model_id,
        **common,
    }


def _show_progress(remote: Remote, uri: str, call: SlowCall) -> None:
    """A bar on stderr until the call is answered; trouble is told once, on a line of its own, also without a
    terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("asking", total=None)
        told = None
        while call.is_alive():
            with suppress(CommandFailed):  # the call itself tells what is wrong
                running = _find_pull(remote, uri)
                _update(bar, task, running)
                trouble = running["trouble"] if running else None
                if trouble and trouble != told:
                    bar.console.print(plain(trouble), soft_wrap=True)
                told = trouble
            call.join(LOOK_S)


def _update(bar: Progress, task: TaskID, running: Mapping[str, Any] | None) -> None:
    if running is not None:
        bar.update(
            task,
            description=_phase(running),
            completed=running["bytes_done"],
            total=running["bytes_total"],
        )


def _phase(pull: Mapping[str, Any]) -> str:
    """A pull that is next has no place in the queue."""
    if pull["phase"] != "queued":
        return plain(pull["phase"])
    return f"queued behind {pull['queue_position']}" if pull["queue_position"] else "waiting to begin"


def _share(pull: Mapping[str, Any]) -> str | None:
    return f"{pull['bytes_done'] / pull['bytes_total']:.0%}" if pull["bytes_total"] else None


def _speed(pull: Mapping[str, Any]) -> str | None:
    return f"{size(pull['speed_bps'])}/s" if pull["speed_bps"] else None


def _find_pull(remote: Remote, uri: str) -> Mapping[str, Any] | None:
    """The running pull of the same model; a subpath does not make it another one."""
    found: list[dict[str, Any]] = remote.get("/models/pulls")
    return next((one for one in found if one["source_uri"] == uri or _same(one["source_uri"], uri)), None)


def _same(first: str, second: str) -> bool:
    return first.startswith("repo://") and first.split("/")[:3] == second.split("/")[:3]


def _cancel(remote: Remote, uri: str, not_ours: str | None) -> None:
    """Whoever began it may end it; a pull that others began goes on."""
    with suppress(CommandFailed):
        running = _find_pull(remote, uri)
        if running is not None and running["id"] != not_ours:
            remote.call("DELETE", path("models", "pulls", running["id"]))
            click.echo("cancelled", err=True)
