"""Lines as they are stored and streamed: chunks with their WebSocket frames, made once for all clients."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from solarhost.logs.lines import LogLine

_quote = json.JSONEncoder(ensure_ascii=False).encode


def text_frame(text: str) -> bytes:
    """One unmasked WebSocket text frame, as a server sends it (RFC 6455, section 5.2)."""
    payload = text.encode()
    size = len(payload)
    if size < 126:
        return bytes((0x81, size)) + payload
    if size < 1 << 16:
        return b"\x81\x7e" + size.to_bytes(2, "big") + payload
    return b"\x81\x7f" + size.to_bytes(8, "big") + payload


class Chunk:
    """Lines that were read together: `lines[i]` has number `first_seq + i`. Never changes."""

    __slots__ = ("_frames", "first_seq", "lines", "raw_bytes", "timestamp")

    def __init__(self, first_seq: int, timestamp: str, lines: Sequence[str], raw_bytes: int):
        self.first_seq = first_seq
        self.timestamp = timestamp
        self.lines = lines
        self.raw_bytes = raw_bytes
        self._frames: list[bytes] | None = None

    @property
    def next_seq(self) -> int:
        return self.first_seq + len(self.lines)

    def numbered(self, since: int) -> list[LogLine]:
        """The lines from number `since` on."""
        skipped = max(0, since - self.first_seq)
        return [
            LogLine(seq, self.timestamp, line)
            for seq, line in enumerate(islice(self.lines, skipped, None), self.first_seq + skipped)
        ]

    def frames(self, since: int) -> bytes:
        """Frames of the lines from number `since` on; each line is encoded once for all clients."""
        frames = self._frames
        if frames is None:  # two threads may both do it: the result is the same
            frames = self._frames = [
                text_frame(f'{{"seq": {seq}, "timestamp": "{self.timestamp}", "line": {_quote(line)}}}')
                for seq, line in enumerate(self.lines, self.first_seq)
            ]
        return b"".join(frames[max(0, since - self.first_seq) :])


@dataclass(frozen=True, slots=True)
class LogBatch:
    """What a stream sends next: lines from `first_seq` on, after `dropped` ones that it missed."""

    dropped: int
    first_seq: int
    chunks: Sequence[Chunk]

    @property
    def lines(self) -> list[str]:
        return [line.line for line in self.numbered()]

    def numbered(self) -> list[LogLine]:
        """The lines with their numbers and times."""
        return [line for chunk in self.chunks for line in chunk.numbered(self.first_seq)]

    @property
    def frames(self) -> bytes:
        """WebSocket text frames of the notice, if any, and of each line, ready to be sent."""
        notice = b""
        if self.dropped:
            notice = text_frame(json.dumps({"dropped": self.dropped, "next_seq": self.first_seq}))
        return notice + b"".join(chunk.frames(self.first_seq) for chunk in self.chunks)
