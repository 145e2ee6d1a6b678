"""Reading the end of a log file of any size, and taking the middle out of one that grew too large."""

import ctypes
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from solarhost.logs.redaction import Redactor
from solarhost.logs.splitter import LineSplitter

HEAD_BYTES = 64 * 1024  # the beginning of a run explains it, so it always stays
MAX_TAIL_BYTES = 8 * 1024 * 1024  # most that one read of a tail looks at
BLOCK = 64 * 1024

_FALLOC_FL_KEEP_SIZE = 0x1
_FALLOC_FL_PUNCH_HOLE = 0x2

_libc = ctypes.CDLL(None, use_errno=True)


def start_of_tail(descriptor: int, end: int, lines: int) -> int:
    """Where the last `lines` lines before `end` begin; later when they take over `MAX_TAIL_BYTES`."""
    if lines <= 0 or end <= 0:
        return end
    position = end - 1  # the last byte ends the last line, or belongs to it
    budget = MAX_TAIL_BYTES
    while position > 0 and budget > 0:
        begin = max(0, position - BLOCK)
        if _next_data(descriptor, begin) >= position:  # a hole; what precedes it is the head
            position = min(os.lseek(descriptor, 0, os.SEEK_HOLE), begin)
            continue
        block = os.pread(descriptor, position - begin, begin)
        found = block.count(b"\n")
        if found >= lines:
            at = len(block)
            for _ in range(lines):
                at = block.rfind(b"\n", 0, at)
            return begin + at + 1
        lines -= found
        position = begin
        budget -= len(block)
    return position


def read_tail(
    path: Path, lines: int, redactor: Redactor, end: int | None = None, cuts: Sequence[int] = ()
) -> tuple[list[str], float]:
    """The last `lines` lines of a file, and its time of change (unix time). It may be of any size.

    Args:
        end: read up to here, else all.
        cuts: offsets where a progress line was given out although it was not finished.

    Raises:
        OSError: it can't be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        end = status.st_size if end is None else end
        start = start_of_tail(descriptor, end, lines)
        splitter = LineSplitter(redactor)
        found: list[str] = []
        for stop in [*(cut for cut in cuts if start < cut < end), end]:
            for block in data_between(descriptor, start, stop):
                found += splitter.feed(block)
            found += splitter.flush()
            start = stop
    finally:
        os.close(descriptor)
    return found[max(0, len(found) - lines) :], status.st_mtime


def read_on(path: Path, start: int, redactor: Redactor) -> tuple[list[str], int]:
    """All lines from the offset `start` on, and how many bytes they take; `MAX_TAIL_BYTES` at most.

    Raises:
        OSError: it can't be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        end = min(os.fstat(descriptor).st_size, start + MAX_TAIL_BYTES)
        splitter = LineSplitter(redactor)
        found: list[str] = []
        for block in data_between(descriptor, start, end):
            found += splitter.feed(block)
        return found + splitter.flush(), max(0, end - start)
    finally:
        os.close(descriptor)


def data_between(descriptor: int, start: int, end: int) -> Iterator[bytes]:
    """The bytes from `start` to `end`, holes and the zeros at their rims left out."""
    while start < end and (start := _next_data(descriptor, start)) < end:
        block = os.pread(descriptor, min(BLOCK, end - start), start)
        if not block:
            return
        start += len(block)
        yield block.replace(b"\0", b"")


def trim(path: Path, max_bytes: int, read_up_to: int) -> None:
    """Give back the disk of the oldest lines after the head when the file takes over `max_bytes`.

    The file keeps its length and its offsets, so a process that appends to it never notices.
    What follows `read_up_to` stays.

    Raises:
        OSError: the file system can't do that (`EOPNOTSUPP`), or the file is gone.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_blocks * 512 <= max_bytes:
            return
        kept = max_bytes - HEAD_BYTES - max_bytes // 8  # room to grow until the next time
        begin = _line_start(descriptor, HEAD_BYTES)
        end = min(_line_start(descriptor, status.st_size - kept), read_up_to)
        if begin < end:
            _punch_hole(descriptor, begin, end - begin)
    finally:
        os.close(descriptor)


def _line_start(descriptor: int, offset: int) -> int:
    """The first line that begins at or after `offset`; `offset` itself when none is near."""
    return offset + os.pread(descriptor, BLOCK, offset).find(b"\n") + 1


def _next_data(descriptor: int, offset: int) -> int:
    """The first position from `offset` on that is not in a hole; the file's size when none is."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError:  # ENXIO: nothing but a hole up to the end
        return os.fstat(descriptor).st_size


def _punch_hole(descriptor: int, offset: int, length: int) -> None:
    mode = _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE
    if _libc.fallocate(descriptor, mode, ctypes.c_int64(offset), ctypes.c_int64(length)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
