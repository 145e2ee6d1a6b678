"""Bytes of a growing log file become redacted text lines, a whole block at a time."""

from solarhost.logs.redaction import Redactor

LINE_LIMIT = 64 * 1024  # bytes; a longer line is given out in parts
CONTINUES = " [line continues]"  # ends each part but the last


class LineSplitter:
    """Splits one file into lines. Where a line ends depends on the bytes alone, not on how they arrived.

    - An unfinished line is held until its end arrives, or `flush`.
    - Of a line that a `\\r` overwrites, as progress bars do, the last state counts. While such a line
      is unfinished, `take_progress` gives its latest complete state.
    - A line over `LINE_LIMIT` bytes comes in parts, so no line needs much memory.
    """

    def __init__(self, redactor: Redactor):
        self._redactor = redactor
        self._held = b""
        self._progress = b""

    @property
    def held(self) -> int:
        """How many of the bytes that were fed belong to a line not yet given out."""
        return len(self._held)

    @property
    def has_progress(self) -> bool:
        """True when `take_progress` has something new to give."""
        return bool(self._progress)

    def feed(self, data: bytes) -> list[str]:
        """Take the next bytes of the file; return the lines that they complete."""
        data = self._held + data
        end = data.rfind(b"\n") + 1
        lines = self._split(data[:end]) if end else []
        if end:
            self._progress = b""  # the line that it belonged to is complete
        parts, self._held = self._shorten(data[end:], self._redactor.longest)
        return lines + parts

    def take_progress(self) -> list[str]:
        """The latest complete state of an unfinished progress line, once, as one line."""
        state, self._progress = self._progress, b""
        return self._decode(state + b"\n") if state else []

    def flush(self) -> list[str]:
        """Give out the unfinished line: nothing more will come."""
        rest, self._held, self._progress = self._held, b"", b""
        return self._split(rest + b"\n") if rest else []

    def _split(self, data: bytes) -> list[str]:
        """Lines of `data`, which ends with a line end."""
        lines: list[str] = []
        start = 0
        while (long := _find_long_line(data, start)) >= 0:
            end = data.index(b"\n", long)
            parts, last = self._shorten(data[long:end], spare=0)
            lines += self._decode(data[start:long]) + parts + self._decode(last + b"\n")
            start = end + 1
        return lines + self._decode(data[start:])

    def _decode(self, data: bytes) -> list[str]:
        """Redact, decode and split whole lines that are none too long."""
        text = self._redactor.data(data).decode("utf-8", "replace")
        lines = text.split("\n")
        lines.pop()  # what follows the last line end: nothing
        if "\r" in text:
            lines = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
        return lines

    def _shorten(self, line: bytes, spare: int) -> tuple[list[str], bytes]:
        """Cut what is too long into parts, note what a `\r` overwrites; return the parts and the rest.

        A `\r` at the very end may be half of a `\r\n`, so it overwrites nothing yet.
        """
        body = line.rstrip(b"\r")
        *overwritten, last = body.split(b"\r")
        parts: list[str] = []
        for state in overwritten:
            cut, state_rest = self._cut(state, self._redactor.longest)
            parts += cut
            self._progress = state_rest or self._progress
        cut, rest = self._cut(last, spare)
        if cut:
            self._progress = b""  # a later state was just given out
        return parts + cut, rest + line[len(body) :]

    def _cut(self, line: bytes, spare: int) -> tuple[list[str], bytes]:
        """Cut what is too long into parts; return them and the rest of the line.

        `spare` more bytes than the limit are awaited, to see a secret that lies across the cut.
        """
        parts: list[str] = []
        while len(line) > LINE_LIMIT + spare:
            at = LINE_LIMIT
            while at > LINE_LIMIT - 4 and line[at] & 0xC0 == 0x80:  # inside a UTF-8 character
                at -= 1
            at = self._redactor.safe_cut(line, at)
            parts += [part + CONTINUES for part in self._decode(line[:at] + b"\n")]
            line = line[at:]
        return parts, line


def _find_long_line(data: bytes, start: int) -> int:
    """Where the first line over the limit begins, or -1. Looks at few bytes when there is none."""
    while start < len(data):
        end = data.rfind(b"\n", start, start + LINE_LIMIT + 1)
        if end < 0:
            return start
        start = end + 1
    return -1
