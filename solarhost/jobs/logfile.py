"""Reading the log file of a step: its end at once, or all of it while it grows."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from solarhost.files import unread
from solarhost.logs.disk import start_of_tail

BLOCK = 256 * 1024
LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class LogExtent:
    """How much of a log file is whole lines."""

    size: int = 0  # bytes
    lines: int = 0
    is_final: bool = False  # no more will come


@dataclass(frozen=True, slots=True)
class LogPart:
    """Lines that follow each other; `lines[0]` is number `first_seq` of its file."""

    first_seq: int
    lines: list[str]


def read_tail(path: Path, extent: LogExtent, *, tail: int, since: int) -> LogPart:
    """The last `tail` lines, of those after number `since`; fewer when they are very long.

    Raises:
        OSError: there is no such file, or it can't be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        wanted = min(tail, extent.lines - since)
        start = start_of_tail(descriptor, extent.size, wanted)
        lines = _lines(os.pread(descriptor, extent.size - start, start))
    finally:
        os.close(descriptor)
    if len(lines) < wanted:  # the first one may lack its beginning
        del lines[:1]
    return LogPart(extent.lines - len(lines) + 1, lines)


class StepLogCursor:
    """One reader's place in a step's log, from its beginning to its end. Used by one thread.

    The file has all lines, so that a reader may be as slow as it likes and misses none.

    Args:
        extent: tells how far the file can be read now.
        since: the number of the last line that the reader has.
    """

    def __init__(self, path: Path, extent: Callable[[], LogExtent], *, since: int):
        self._path = path
        self._extent = extent
        self._since = since
        self._descriptor: int | None = None
        self._offset = 0
        self._seq = 0  # of the line that ends at the offset
        self.closed = False  # the last line was given

    def next(self, timeout_s: float) -> LogPart | None:
        """The next lines; None when none came in time, or at the end.

        Raises:
            StoreError: the file can't be read now.
        """
        deadline = time.monotonic() + timeout_s
        while not self.closed:
            extent = self._extent()
            if self._offset < extent.size:
                if (part := self._read(extent.size)) is not None:
                    return part
            elif extent.is_final:
                self.closed = True
            elif time.monotonic() >= deadline:
                return None
            else:
                time.sleep(LOOK_S)
        return None

    def close(self) -> None:
        """The reader has gone."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _read(self, size: int) -> LogPart | None:
        """The lines of the next block that the reader does not have."""
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            block = os.pread(self._descriptor, min(BLOCK, size - self._offset), self._offset)
        except FileNotFoundError:  # the job was removed
            block = b""
        except OSError as error:
            raise unread(self._path, error) from error
        block = block[: block.rfind(b"\n") + 1]
        self.closed = not block  # or someone else has cut the file
        self._offset += len(block)
        before, self._seq = self._seq, self._seq + block.count(b"\n")
        known = max(0, self._since - before)
        if self._seq <= self._since:
            return None
        return LogPart(before + known + 1, _lines(block)[known:])


def _lines(block: bytes) -> list[str]:
    return block.decode(errors="replace").split("\n")[:-1]
