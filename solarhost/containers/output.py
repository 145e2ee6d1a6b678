"""A container's stdout and stderr, told apart, as they come."""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from solarhost.containers.longcall import LongCall
from solarhost.times import now_iso

STREAMS = {0: "stdout", 1: "stdout", 2: "stderr", 3: "stderr"}  # 3: the engine itself
STAMP_CHARS = 30  # 2026-11-30T04:57:06.645034295Z, in front of each record of a stored log
_FRAME = Struct(">BxxxL")  # stream, then the length of what follows


class Chunk(NamedTuple):
    """Bytes of one stream; not a line: it may hold many, or a part of one."""

    stream: str  # stdout or stderr
    timestamp: str  # ISO 8601: when it was printed (a stored log) or read (a live one)
    data: bytes


class Output:
    """Iterates over batches of chunks until the container's output, or the connection, ends.

    Source: Docker Engine API, "Attach to a container", stream format.
    """

    def __init__(self, call: LongCall, *, stored: bool):
        self._call = call
        self._stored = stored  # a stored log: each frame is one record and starts with its time

    def __iter__(self) -> Iterator[list[Chunk]]:
        pending = b""
        while data := self._call.read():
            pending = pending + data if pending else data
            frames, used = _frames(pending)
            pending = pending[used:]
            if frames:
                yield [_dated(*frame) for frame in frames] if self._stored else _received(frames)

    def cut(self) -> None:
        """End it from another thread; the iteration raises `CallCut`."""
        self._call.cut()

    def close(self) -> None:
        self._call.close()


def _frames(data: bytes) -> tuple[list[tuple[str, bytes]], int]:
    """The whole frames at the start of `data`, and how many bytes they take."""
    frames = []
    at = 0
    while at + _FRAME.size <= len(data):
        stream, length = _FRAME.unpack_from(data, at)
        end = at + _FRAME.size + length
        if end > len(data):
            break
        frames.append((STREAMS.get(stream, "stderr"), data[at + _FRAME.size : end]))
        at = end
    return frames, at


def _received(frames: list[tuple[str, bytes]]) -> list[Chunk]:
    timestamp = now_iso()
    return [Chunk(stream, timestamp, data) for stream, data in frames]


def _dated(stream: str, record: bytes) -> Chunk:
    stamp = record[:26].decode("ascii")  # to the microsecond, as our own times
    return Chunk(stream, f"{stamp}+00:00", record[STAMP_CHARS + 1 :])
