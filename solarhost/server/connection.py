"""One client's connection, and the socket that a request thread writes its answer to."""

import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto

from solarhost.server.intake import Intake

MAX_UNSENT_BYTES = 2 * 1024 * 1024
SEND_TIMEOUT_S = 20.0  # for a thread whose answer does not even fit into MAX_UNSENT_BYTES

# Headers and body of an answer that lies ready. The poller calls it, so it must neither wait nor fail.
Ready = Callable[[], tuple[Sequence[tuple[str, str]], bytes]]


class Phase(Enum):
    """Who owns a connection, and what it waits for."""

    READING = auto()  # the poller: for a whole request
    BUSY = auto()  # a request thread, or the queue to one
    WRITING = auto()  # the poller: for the client to take the rest of its answer
    LINGERING = auto()  # the poller: answered and half closed; for the client to close its side


class Connection:
    """The state of one connection. The phase says which thread may touch it."""

    def __init__(self, raw: socket.socket, client: tuple[str, int], server: tuple[str, int]):
        self.raw = raw
        self.descriptor = raw.fileno()  # stays known after `raw` was closed
        self.client = client
        self.server = server
        self.sock = AnswerSocket(raw)  # gunicorn's name for what it writes to
        self.intake = Intake()
        self.phase = Phase.READING
        self.since = time.monotonic()  # when it began to wait for what it waits for
        self.keep_alive = True  # after the answer
        self.answered = False  # at least once

    def held_bytes(self) -> int:
        """Memory that this connection's client makes us hold."""
        return len(self.intake) + len(self.sock.unsent)


class AnswerSocket:
    """Takes an answer at once, however slowly its client reads.

    What the kernel does not take is kept in `unsent` for the poller to send later, so that a slow
    reader holds no thread. Only an answer larger than `MAX_UNSENT_BYTES` makes its thread wait, and
    that for a bounded time.
    """

    def __init__(self, raw: socket.socket):
        self.raw = raw
        self.unsent = bytearray()
        self.ready: Ready | None = None  # set by an application whose answer to this request lies ready
        self._head: bytes | None = b""  # held back; None once it was sent

    def begin(self) -> None:
        """The next write is the head of an answer."""
        self._head = b""
        self.ready = None

    def sendall(self, data: bytes) -> None:
        """Part of an answer, its head first, as gunicorn calls it. Raises as `send` does."""
        if self._head is None:
            self.send(data)
        elif not self._head:
            self._head = data  # leaves with the first bytes of the body, in one packet
        else:
            data, self._head = self._head + data, None
            self.send(data)

    def flush(self) -> None:
        """Send a head that no body followed."""
        if self._head:
            self.send(self._head)
        self._head = None

    def shutdown(self, _how: int) -> None:
        """gunicorn closes after an answer that broke off; here the poller does."""
        raise OSError("the connection is the poller's to close")

    def close(self) -> None:
        """See `shutdown`."""

    def send_unsent(self) -> bool:
        """Give the kernel what it takes now; True when nothing is left."""
        if self.unsent:
            del self.unsent[: _send_some(self.raw, self.unsent)]
        return not self.unsent

    def send(self, data: bytes) -> None:
        """Send, or keep for later. Waits only while more than `MAX_UNSENT_BYTES` are kept.

        Raises:
            OSError: the client is gone, or takes nothing.
        """
        sent = 0 if self.unsent else _send_some(self.raw, data)
        if sent == len(data):
            return
        self.unsent += memoryview(data)[sent:]
        if len(self.unsent) > MAX_UNSENT_BYTES:
            self._wait_for_room(time.monotonic() + SEND_TIMEOUT_S)

    def _wait_for_room(self, deadline: float) -> None:
        poll = select.poll()
        poll.register(self.raw, select.POLLOUT)
        while len(self.unsent) > MAX_UNSENT_BYTES:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the client does not read its answer")
            poll.poll(left_s * 1000)
            self.send_unsent()


def _send_some(raw: socket.socket, data: bytes | bytearray) -> int:
    with suppress(BlockingIOError):
        return raw.send(data, socket.MSG_DONTWAIT)
    return 0
