"""Bytes of one stream of a container, cut into lines that people can read."""

import time

from solarhost.logs.redaction import Redactor

LIMIT = 64 * 1024  # bytes of a line; the rest comes as further lines
CONTINUES = " [line continues]"
PROGRESS_S = 1.0  # a progress bar becomes a line this often


class Splitter:
    """Feeds on chunks, gives whole lines: decoded, without secrets.

    - Invalid UTF-8 is replaced.
    - A line longer than `LIMIT` comes in parts, each but the last marked with `CONTINUES`.
    - Text between carriage returns is a progress bar's: its newest state becomes a line at most once in
      `PROGRESS_S`, and its last one when the line ends.

    `lines` and `offset` say how far it is: lines taken whole, then bytes of the next one that were given
    out or passed over. After `rewind` it takes the same stream from its start and passes over as much.
    (Lines, not bytes, because Docker's stored log differs in the bytes of invalid UTF-8.)
    """

    def __init__(self, redactor: Redactor, *, lines: int = 0, offset: int = 0):
        self._redactor = redactor
        self.lines = lines
        self.offset = offset
        self._pending = b""
        self._held: bytes | None = None  # newest state of a progress bar that was not given out
        self._updated_s = float("-inf")
        self._skip_lines = 0
        self._skip_bytes = 0

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes."""
        if self._skip_lines or self._skip_bytes:
            data = self._after_skip(data)
        data = self._pending + data if self._pending else data
        whole, newline, self._pending = data.rpartition(b"\n")
        texts = self._take(whole) if newline else []
        if b"\r" in self._pending:
            texts += self._progress()
        while len(self._pending) > LIMIT + self._redactor.longest:  # a secret at the cut is seen whole
            at = self._cut_at(self._pending)
            texts.append(self._text(self._pending[:at]) + CONTINUES)
            self._pending = self._pending[at:]
            self.offset += at
        return texts

    def finish(self) -> list[str]:
        """The stream has ended: its last line, if that had no line end."""
        return self.feed(b"\n") if self._pending or self._held is not None else []

    def rewind(self) -> None:
        """The same stream is about to be fed again from its start."""
        self._pending = b""
        self._skip_lines, self._skip_bytes = self.lines, self.offset

    def _take(self, whole: bytes) -> list[str]:
        """Lines that are complete; the first may have begun with what was given out before."""
        lines = whole.split(b"\n")
        self.lines += len(lines)
        if b"\r" in whole:
            lines = [_newest(line) for line in lines]
        if self.offset and not lines[0]:
            lines[:1] = [] if self._held is None else [self._held]
        self.offset, self._held = 0, None
        if len(whole) > LIMIT:
            return [part for line in lines for part in self._parts(line)]
        return self._text(b"\n".join(lines)).split("\n") if lines else []

    def _progress(self) -> list[str]:
        """Look at a line in progress that has carriage returns; keep only what follows the last one."""
        done, _, self._pending = self._pending.rpartition(b"\r")
        self.offset += len(done) + 1
        self._held = _newest(done) or self._held
        if self._held is None or time.monotonic() - self._updated_s < PROGRESS_S:
            return []
        text, self._held = self._text(self._held), None
        self._updated_s = time.monotonic()
        return [text]

    def _parts(self, line: bytes) -> list[str]:
        parts = []
        while len(line) > LIMIT:
            at = self._cut_at(line)
            parts.append(self._text(line[:at]) + CONTINUES)
            line = line[at:]
        return [*parts, self._text(line)]

    def _cut_at(self, line: bytes) -> int:
        """Where to cut a long line: near LIMIT, but through no character and no secret."""
        at = LIMIT
        while at > LIMIT - 4 and line[at] & 0xC0 == 0x80:  # inside a character
            at -= 1
        return self._redactor.safe_cut(line, at)

    def _text(self, data: bytes) -> str:
        return self._redactor.data(data).decode("utf-8", "replace")

    def _after_skip(self, data: bytes) -> bytes:
        """`data` without what was taken before the rewind."""
        if self._skip_lines:
            newlines = data.count(b"\n")
            if newlines < self._skip_lines:
                self._skip_lines -= newlines
                return b""
            at = -1
            for _ in range(self._skip_lines):
                at = data.index(b"\n", at + 1)
            self._skip_lines = 0
            data = data[at + 1 :]
        skipped = min(self._skip_bytes, len(data))
        self._skip_bytes -= skipped
        return data[skipped:]


def _newest(line: bytes) -> bytes:
    """The last state of a progress bar; a line as it is if it has no carriage return."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]
