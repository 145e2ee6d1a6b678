"""Reads requests until they are whole, and sends what a client was too slow to take.

A connection that waits costs a descriptor and its bytes, never a thread. Both are bounded: at the limit
the one that has waited longest makes room.
"""

import errno
import heapq
import logging
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock

from solarhost.server.connection import Connection, Phase
from solarhost.server.intake import TooLarge
from solarhost.server.refusals import refuse
from solarhost.server.waits import STALLED, patience_s, worth

logger = logging.getLogger(__name__)

MAX_HELD_BYTES = 64 * 1024 * 1024  # of incomplete requests and unsent answers together
RECEIVE_BYTES = 16 * 1024
RECEIVE_BODY_BYTES = 256 * 1024
ACCEPTS_AT_ONCE = 64
ROOM = 16  # connections dropped at once when there are too many


class Poller:
    """All connections of one worker. One thread's, but for `release`, which is any thread's.

    `on_request` gets each connection whose request is whole. Whoever answers it gives the connection
    back with `release`.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        wake_up: int,
        max_connections: int,
        on_request: Callable[[Connection], None],
    ):
        self._listeners = {listener.fileno(): listener for listener in listeners}
        self._wake_up = wake_up  # a pipe; a byte in it ends a `turn`
        self._max_connections = max_connections
        self._on_request = on_request
        self._listening = False
        self._lock = Lock()  # guards the phase of each connection
        self._connections: dict[int, Connection] = {}  # by descriptor; the poller's own
        self._holds_more = False  # some connection holds much more than it did
        self._epoll = select.epoll()
        self._epoll.register(wake_up, select.EPOLLIN)

    def turn(self, timeout_s: float) -> None:
        """Wait for something to do, and do it."""
        for descriptor, _ in self._epoll.poll(timeout_s):
            connection = self._connections.get(descriptor)
            if connection:
                self._on_ready(connection)
            elif descriptor in self._listeners:
                self._accept(self._listeners[descriptor])
            else:
                self._drain_wake_up()
        if self._holds_more:
            self._holds_more = False
            self._bound_memory()

    def listen(self, wanted: bool) -> None:
        """Start or stop to accept connections; meanwhile they wait in the kernel."""
        if wanted == self._listening:
            return
        for descriptor in self._listeners:
            if wanted:
                self._epoll.register(descriptor, select.EPOLLIN)
            else:
                self._epoll.unregister(descriptor)
        self._listening = wanted

    def sweep(self) -> None:
        """End the waits that took too long; called some times a second."""
        now = time.monotonic()
        for connection in self._waiting():
            if now - connection.since <= patience_s(connection):
                continue
            if connection.phase is Phase.READING and len(connection.intake):
                self.refuse(connection, 408, "the request did not arrive in time")
            else:
                self._drop(connection)

    def has_answers_to_send(self) -> bool:
        return any(connection.phase is not Phase.READING for connection in self._connections.values())

    def answer(self, connection: Connection, data: bytes) -> None:
        """Send a whole answer from the poller's own thread, and go on with the connection."""
        try:
            connection.sock.send(data)
        except OSError:
            self._drop(connection)
        else:
            self.release(connection, keep_alive=True)

    def refuse(self, connection: Connection, status: int, detail: str) -> None:
        """Answer with an error, from the poller's own thread, and close."""
        refuse(connection, status, detail)
        self.release(connection, keep_alive=False)

    def release(self, connection: Connection, keep_alive: bool) -> None:
        """Give an answered connection back. The caller must not touch it afterwards."""
        with self._lock:
            connection.since = time.monotonic()
            connection.keep_alive = keep_alive
            connection.answered = True
            if connection.sock.unsent:
                self._holds_more = True
                connection.phase = Phase.WRITING
                self._arm(connection, select.EPOLLOUT)
            elif keep_alive:
                connection.phase = Phase.READING
                self._arm(connection, select.EPOLLIN)
            else:
                with suppress(OSError):
                    connection.raw.shutdown(socket.SHUT_WR)
                connection.phase = Phase.LINGERING
                self._arm(connection, select.EPOLLIN)

    def _drain_wake_up(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wake_up, 4096)

    def _accept(self, listener: socket.socket) -> None:
        server = listener.getsockname()
        for _ in range(ACCEPTS_AT_ONCE):
            if len(self._connections) >= self._max_connections and not self._make_room():
                self.listen(False)  # all are being answered; the next sweep tries again
                return
            try:
                raw, client = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    logger.warning("no connection can be accepted: %s", error.strerror)
                    if not self._make_room():
                        self.listen(False)
                        return
                continue  # the client gave up before it was accepted
            raw.setblocking(False)
            connection = Connection(raw, client, server)
            self._connections[connection.descriptor] = connection
            self._epoll.register(raw, select.EPOLLIN | select.EPOLLONESHOT)

    def _on_ready(self, connection: Connection) -> None:
        match connection.phase:
            case Phase.READING:
                self._receive(connection)
            case Phase.WRITING:
                self._send_rest(connection)
            case Phase.LINGERING:
                self._discard(connection)

    def _receive(self, connection: Connection) -> None:
        intake = connection.intake
        was_empty, was_in_body = not len(intake), intake.in_body
        try:
            data = connection.raw.recv(RECEIVE_BODY_BYTES if was_in_body else RECEIVE_BYTES)
            whole = intake.feed(data)
        except BlockingIOError:
            self._arm(connection, select.EPOLLIN)
            return
        except OSError:
            self._drop(connection)
            return
        except TooLarge as error:
            self.refuse(connection, error.status, str(error))
            return
        if not data:
            self._drop(connection)
        elif whole:
            self._on_request(connection)
        else:
            if was_empty or intake.in_body != was_in_body:
                connection.since = time.monotonic()
            if intake.wants_continue():
                with suppress(OSError):
                    connection.raw.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._arm(connection, select.EPOLLIN)
            self._holds_more |= was_in_body

    def _send_rest(self, connection: Connection) -> None:
        try:
            done = connection.sock.send_unsent()
        except OSError:
            self._drop(connection)
            return
        if done:
            self.release(connection, connection.keep_alive)
        else:
            self._arm(connection, select.EPOLLOUT)

    def _discard(self, connection: Connection) -> None:
        """Read on after the answer: closing with unread bytes would reset it on its way to the client."""
        try:
            data = connection.raw.recv(RECEIVE_BODY_BYTES)
        except BlockingIOError:
            data = b"."
        except OSError:
            data = b""
        if data:
            self._arm(connection, select.EPOLLIN)
        else:
            self._drop(connection)

    def _waiting(self) -> list[Connection]:
        with self._lock:
            return [c for c in self._connections.values() if c.phase is not Phase.BUSY]

    def _make_room(self) -> bool:
        """Drop the most dispensable connection, and some more if they stall; False when none waits."""
        now = time.monotonic()
        dispensable = heapq.nsmallest(ROOM, self._waiting(), key=lambda c: worth(c, now))
        for connection in dispensable:
            if connection is dispensable[0] or worth(connection, now)[0] == STALLED:
                self._drop(connection)
        return bool(dispensable)

    def _bound_memory(self) -> None:
        holders = [connection for connection in self._waiting() if connection.held_bytes() > RECEIVE_BYTES]
        holders.sort(key=lambda connection: connection.since, reverse=True)
        held = sum(connection.held_bytes() for connection in holders)
        while held > MAX_HELD_BYTES:
            longest = holders.pop()
            held -= longest.held_bytes()
            self._drop(longest)

    def _drop(self, connection: Connection) -> None:
        with self._lock:  # its request thread may just be arming it
            del self._connections[connection.descriptor]
            connection.raw.close()  # takes it out of the poller, too

    def _arm(self, connection: Connection, events: int) -> None:
        """Have the poller look at it once; it is armed anew after each event."""
        self._epoll.modify(connection.descriptor, events | select.EPOLLONESHOT)
