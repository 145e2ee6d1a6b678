"""One client's connection: whether a request is there, and reading it from a client that may be slow."""

import re
import socket
import struct
import time
from threading import Lock
from typing import Any

from gunicorn.http.parser import RequestParser
from gunicorn.http.unreader import SocketUnreader

from hf_server.errors import HeadTooLarge, Overloaded, RequestTimeout

MAX_PEEK_BYTES = 64 * 1024  # of a request that is waited for without a thread
SILENCE_S = 10  # longest wait for the next byte of a body that a thread reads
BODY_S = 30  # for a whole body, and a second more for each LEAST_RATE bytes of it
LEAST_RATE = 16 * 1024
MAX_HELD_BYTES = 256 * 1024 * 1024  # of the requests of all clients that threads read and answer
SEND_S = 60  # longest wait for a client that takes nothing of its answer
SEND_BUFFER_BYTES = 256 * 1024  # the kernel's own limit is some megabytes for each client

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,9})[ \t]*\r\n", re.IGNORECASE)
_EXPECT = re.compile(rb"\r\nexpect:", re.IGNORECASE)


class Intake:
    """Counts the bytes of requests that are held in memory. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held = 0

    def take(self, count: int) -> None:
        """Raises Overloaded."""
        with self._lock:
            if self._held + count > MAX_HELD_BYTES:
                raise Overloaded(f"requests with {self._held} bytes are under way already; try again later")
            self._held += count

    def give_back(self, count: int) -> None:
        with self._lock:
            self._held -= count


class Connection:
    """Belongs to one request thread while it is `busy`, else to the poller."""

    def __init__(self, sock: socket.socket, client: Any, server: Any, cfg: Any, intake: Intake):
        sock.setblocking(True)
        # The kernel's limits begin anew with each byte; Python's is one for all of a long answer.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", SILENCE_S, 0))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_S, 0))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self.sock = sock
        self.descriptor = sock.fileno()
        self.client = client
        self.server = server
        self.reader = _Reader(sock, intake)
        self.parser = RequestParser(cfg, sock, client)
        self.parser.unreader = self.reader
        self.busy = False
        self.begun = False  # part of a request is there
        self.lingers = False  # answered for the last time: what still comes is thrown away
        self.deadline = 0.0  # of what the poller waits for
        self._low_water = 1

    def has_request(self) -> bool:
        """True when a thread can begin: the head is there, and a short body; or nothing more will come.

        Raises:
            BlockingIOError: not a byte is there.
            ConnectionError: the client is gone.
            HeadTooLarge: refuse it.
        """
        ahead = self.reader.buf.getvalue()  # read with the request before
        try:
            arrived = self.sock.recv(MAX_PEEK_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            # Fewer than waited for: the client closed its side, or the kernel can't hold more.
            ended = len(arrived) < self._low_water
        except BlockingIOError:
            if not ahead:
                raise
            arrived, ended = b"", False
        request = ahead + arrived
        if not request:
            raise ConnectionResetError
        needed = len(request) if ended else _needed(request)
        whole = needed <= len(request)
        self.begun = not whole
        self.wake_on(1 if whole else needed - len(ahead))
        return whole

    def wake_on(self, count: int) -> None:
        """Let the poller wake, and a thread's read return, only for `count` bytes or the end."""
        if count != self._low_water:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
            self._low_water = count


def _needed(request: bytes) -> int:
    """How many bytes a thread needs to begin with the request that begins so. Raises HeadTooLarge."""
    end = request.find(b"\r\n\r\n") + 4
    if end < 4:
        if len(request) >= MAX_PEEK_BYTES:
            raise HeadTooLarge(f"the request's head has more than {MAX_PEEK_BYTES} bytes")
        return len(request) + 1
    length = _LENGTH.search(request, 0, end)
    whole = end + int(length[1]) if length else end
    # A thread reads a long body, and one that the client sends only when told to.
    in_thread = whole > MAX_PEEK_BYTES or (whole > len(request) and _EXPECT.search(request, 0, end))
    return end if in_thread else whole


class _Reader(SocketUnreader):  # type: ignore[misc]
    """Reads for gunicorn's parser, as long as the client sends fast enough."""

    def __init__(self, sock: socket.socket, intake: Intake):
        super().__init__(sock)
        self._intake = intake
        self._received = 0
        self._begun = 0.0
        self.waits = True  # for what is not there yet

    def begin(self) -> None:
        """A thread begins with a request."""
        self._begun = time.monotonic()
        self.waits = True

    def end(self) -> None:
        """The request is answered, and forgotten."""
        self._intake.give_back(self._received)
        self._received = 0

    def chunk(self, size_hint: int | None = None) -> bytes:
        """Raises RequestTimeout, Overloaded; BlockingIOError where it doesn't wait."""
        size = min(max(size_hint or 0, MAX_PEEK_BYTES), self.max_body_chunk)
        try:
            data: bytes = self.sock.recv(size, 0 if self.waits else socket.MSG_DONTWAIT)
        except BlockingIOError as error:
            if not self.waits:
                raise
            raise RequestTimeout(f"nothing came of the request for {SILENCE_S} s") from error
        self._intake.take(len(data))
        self._received += len(data)
        took_s = time.monotonic() - self._begun
        if self.waits and took_s > BODY_S + self._received / LEAST_RATE:
            raise RequestTimeout(f"only {self._received} bytes of the request came in {took_s:.0f} s")
        return data
