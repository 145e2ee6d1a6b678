"""Where an HTTP/1 request ends in the bytes that have arrived so far.

Only framing is looked at here, so that the poller can hold a connection back until its request is
whole. Meaning is left to gunicorn's parser: whatever looks malformed counts as whole, and the parser
then says what is wrong with it.
"""

import re

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_CHUNK_LINE_BYTES = 1024

_EXPECT_CONTINUE = re.compile(rb"\r\nexpect:[ \t]*100-continue[ \t]*(?=\r\n)", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,19})[ \t]*\r\n", re.IGNORECASE)
_CODING = re.compile(rb"\r\ntransfer-encoding:[ \t]*([^\r\n]*?)[ \t]*\r\n", re.IGNORECASE)
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?")


class TooLarge(Exception):
    """The request exceeds a limit; `status` and the text are its answer."""

    def __init__(self, status: int, detail: str):
        super().__init__(detail)
        self.status = status


class Intake:
    """The bytes of one connection that no request has taken yet. Used by one thread at a time."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._begin()

    def _begin(self) -> None:
        self._head_end = 0  # first byte after the head; 0 while it is not whole
        self._searched = 0  # up to here there is no end of the head
        self._end: int | None = None  # first byte after the request, once known
        self._chunks: _Chunks | None = None
        self._expects_continue = False

    def __len__(self) -> int:
        return len(self._data)

    @property
    def in_body(self) -> bool:
        """The head is whole, and what is awaited belongs to the body."""
        return self._head_end > 0

    def feed(self, data: bytes) -> bool:
        """Add what arrived; True when a request is whole.

        Raises:
            TooLarge: the head or the body is over its limit.
        """
        self._data += data
        if not self._head_end and not self._find_head():
            return False
        if self._end is None:
            assert self._chunks is not None
            self._end = self._chunks.find_end(self._data)
            if self._end is None and len(self._data) - self._head_end > MAX_BODY_BYTES:
                raise _body_too_large()
        return self._end is not None and len(self._data) >= self._end

    def take(self) -> bytes:
        """The whole request; what follows it (a pipelined one) stays."""
        request = bytes(self._data[: self._end])
        del self._data[: self._end]
        self._begin()
        return request

    def sole_request(self) -> bytes | None:
        """The whole request if it is all that has arrived; it stays."""
        return bytes(self._data) if len(self._data) == self._end else None

    def wants_continue(self) -> bool:
        """True once for a client that waits for `100 Continue` before it sends its body."""
        wanted, self._expects_continue = self._expects_continue, False
        return wanted

    def _find_head(self) -> bool:
        end = self._data.find(b"\r\n\r\n", self._searched)
        if end >= 0:
            self._head_end = end + 4
            self._read_framing()
            return True
        if len(self._data) > MAX_HEAD_BYTES:
            raise TooLarge(431, f"the request's head is larger than {MAX_HEAD_BYTES} bytes")
        if self._has_bare_line_feed():  # no CRLF pair will ever end this head
            self._head_end = self._end = len(self._data)
            return True
        self._searched = max(0, len(self._data) - 3)
        return False

    def _has_bare_line_feed(self) -> bool:
        at = self._data.find(b"\n", self._searched)
        while at >= 0:
            if self._data[at - 1 : at] != b"\r":
                return True
            at = self._data.find(b"\n", at + 1)
        return False

    def _read_framing(self) -> None:
        if self._head_end > MAX_HEAD_BYTES:
            raise TooLarge(431, f"the request's head is larger than {MAX_HEAD_BYTES} bytes")
        head = bytes(self._data[: self._head_end])
        coding = _CODING.search(head)
        length = _LENGTH.search(head)
        if coding and coding[1].lower() == b"chunked" and not length:
            self._chunks = _Chunks(self._head_end)
        elif length and not coding:
            size = int(length[1])
            if size > MAX_BODY_BYTES:
                raise _body_too_large()
            self._end = self._head_end + size
        else:  # no body, or a framing that the parser refuses
            self._end = self._head_end
        self._answer_expectation(head)

    def _answer_expectation(self, head: bytes) -> None:
        """Take the expectation out of the head: it is answered here, before the body was sent."""
        found = _EXPECT_CONTINUE.search(head)
        if not found or b" HTTP/1.0\r\n" in head:
            return
        cut = found.end() - found.start()
        del self._data[found.start() : found.end()]
        self._head_end -= cut
        if self._chunks:
            self._chunks = _Chunks(self._head_end)
        elif self._end is not None:
            self._end -= cut
        self._expects_continue = len(self._data) == self._head_end and self._end != self._head_end


class _Chunks:
    """Walks over the chunks of a body as they arrive (RFC 9112, section 7.1)."""

    def __init__(self, start: int):
        self._at = start  # everything before it has been understood
        self._trailers = False

    def find_end(self, data: bytearray) -> int | None:
        """First byte after the body, or None while it is not whole. A malformed body ends at once."""
        while not self._trailers:
            line_end = data.find(b"\r\n", self._at, self._at + MAX_CHUNK_LINE_BYTES)
            if line_end < 0:
                return None if len(data) - self._at < MAX_CHUNK_LINE_BYTES else len(data)
            size = _CHUNK_SIZE.fullmatch(data, self._at, line_end)
            if not size:
                return len(data)
            length = int(size[1], 16)
            if length > MAX_BODY_BYTES:
                raise _body_too_large()
            if length == 0:
                self._trailers = True
                self._at = line_end  # so that no trailers at all look like the end of some
                break
            if len(data) < line_end + 2 + length + 2:
                return None
            self._at = line_end + 2 + length + 2
        end = data.find(b"\r\n\r\n", self._at)
        if end >= 0:
            return end + 4
        return None if len(data) - self._at < MAX_HEAD_BYTES else len(data)


def _body_too_large() -> TooLarge:
    return TooLarge(413, f"the request's body is larger than {MAX_BODY_BYTES} bytes")
