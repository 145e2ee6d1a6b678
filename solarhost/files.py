"""Small JSON files that survive a crash, a full disk and a bad edit; folders, read whole or not at all.

What can't be read now is never taken for damaged, nor for gone: it may be read again in a moment.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from solarhost import strictjson
from solarhost.errors import StoreError
from solarhost.shortages import why

# Changes with a file's content: inode, size, time of modification in nanoseconds.
Stamp = tuple[int, int, int]


class Damaged(StoreError):
    """A file was read, and what is in it makes no sense."""

    def __init__(self, path: Path, how: str):
        super().__init__(f"{path} makes no sense: {how}")


def write_json(path: Path, data: object, mode: int = 0o600, *, durable: bool = True) -> None:
    """Replace `path` by `data`, or leave it exactly as it was.

    The bytes go to a draft beside it, are forced to disk, and take the name last. Without `durable`
    they are neither forced to disk nor laid out for a reader: quick, and it survives the end of this
    process, not a power cut.

    Raises:
        StoreError: the disk is full, the folder is gone or not writable, …
    """
    write_text(
        path, json.dumps(data, indent=2 if durable else None, ensure_ascii=False), mode, durable=durable
    )


def write_text(path: Path, text: str, mode: int = 0o600, *, durable: bool = True) -> Stamp:
    """The same for a text that was made already; returns how what was written is told from other content.

    Raises:
        StoreError: the disk is full, the folder is gone or not writable, …
    """
    body = text.encode("utf-8", "surrogatepass")
    target = Path(os.path.realpath(path)) if path.is_symlink() else path  # a link stays one
    draft = target.with_name(f".{target.name}.draft")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(body)
            file.flush()
            if durable:
                os.fsync(descriptor)
            written = _stamp(os.fstat(descriptor))
        draft.replace(target)
        if durable:
            _sync_folder(target.parent)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise StoreError(f"{path} could not be written: {why(error)}") from error
    return written


def is_file(path: Path) -> bool:
    """True for a file that this user can see; `Path.is_file` raises for closed folders and overlong names."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path) -> bool:
    """The same for a folder."""
    return os.path.isdir(path)  # noqa: PTH112


def stamp(path: Path) -> Stamp | None:
    """What the file is told by now, None when there is none or it can't be seen."""
    try:
        return _stamp(path.stat())
    except OSError:
        return None


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_ino, status.st_size, status.st_mtime_ns


def read_json(path: Path) -> Any:
    """The parsed file, or None when there is none.

    Raises:
        Damaged: it can't be decoded or parsed.
        StoreError: it can't be read now.
    """
    try:
        data = json.loads(path.read_bytes())
        strictjson.check_depth(data, 2 * strictjson.MAX_DEPTH)  # what is stored has wrappings of ours
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unread(path, error) from error
    except (ValueError, RecursionError) as error:  # bad JSON, bad UTF-8, absurd nesting
        raise Damaged(path, str(error)) from error
    if data is None:  # somebody wrote `null`, which is not the same as no file
        raise Damaged(path, "it holds nothing but null")
    return data


def unread(path: Path, error: OSError) -> StoreError:
    """The error of a file or folder that the system does not let us read now."""
    return StoreError(f"{path} can't be read: {why(error)}")


def walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """`os.walk` of what there is, without a folder left out because it can't be read now.

    Raises:
        StoreError: one of them can't.
    """

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise unread(Path(error.filename), error) from error

    return os.walk(folder, onerror=failed)


def set_aside(path: Path) -> Path:
    """Rename a file that is `Damaged`, so that its bytes are kept; return its new path.

    Raises:
        StoreError: it could not be renamed.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    aside = path.with_name(f"{path.name}.unreadable-{stamp}")
    try:
        path.rename(aside)
    except OSError as error:
        raise StoreError(f"{path} could not be set aside: {why(error)}") from error
    return aside


def _sync_folder(folder: Path) -> None:
    """Force the rename itself to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
