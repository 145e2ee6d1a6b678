"""Names of log files: `{alias}_{instance id}_{unix time}.log`."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

# Ids have no `_`, so a name can be taken apart from its right end whatever the alias is.
_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,126}[A-Za-z0-9])?")
_NAME = re.compile(rf"(?P<alias>.+)_(?P<id>{_ID.pattern})_(?P<time>[0-9]{{1,12}})\.log", re.DOTALL)
_UNSAFE = re.compile(r"[^\w.+@=,~-]")
_ALIAS_BYTES = 80  # file systems stop at 255 bytes for a name


class LogFile(NamedTuple):
    """A log file on disk, as its name tells."""

    path: Path
    alias: str  # in its safe form
    instance_id: str
    started: int  # unix time


def is_id(text: str) -> bool:
    """True when `text` can be an instance id, so that it may become part of a file name."""
    return _ID.fullmatch(text) is not None


def safe_alias(alias: str) -> str:
    """The alias as it stands in file names: `llama-3:8b` is `llama-3-8b`."""
    safe = _UNSAFE.sub("-", alias)
    if safe.startswith("."):
        safe = "-" + safe[1:]
    return safe.encode()[:_ALIAS_BYTES].decode("utf-8", "ignore") or "-"


def log_name(alias: str, instance_id: str, started: int) -> str:
    return f"{safe_alias(alias)}_{instance_id}_{started}.log"


def parse(path: Path) -> LogFile | None:
    """What the name says; None for a file that is not one of ours."""
    match = _NAME.fullmatch(path.name)
    if not match:
        return None
    return LogFile(path, match["alias"], match["id"], int(match["time"]))


def log_files(folder: Path, instance_id: str | None = None) -> list[LogFile]:
    """The log files in `folder`, of one instance or of all, oldest first."""
    return sorted(_scan(folder, instance_id), key=lambda file: file.started)


def _scan(folder: Path, instance_id: str | None) -> Iterator[LogFile]:
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            file = parse(Path(entry.path))
            if file and instance_id in (None, file.instance_id) and entry.is_file(follow_symlinks=False):
                yield file
