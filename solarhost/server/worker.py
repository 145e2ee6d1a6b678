"""gunicorn's threaded worker, with a poller that hands on whole requests only.

The stock worker gives a thread to each connection that sent one byte, so a few dozen slow clients
stop it. Here the main thread reads until a request is whole, and sends what a client was too slow to
take; request threads see complete requests only, and never wait for a client to read (`connection`).
A connection that waits costs a descriptor and its bytes. Both are bounded: at the limit the one that
has waited longest makes room.
"""

import errno
import heapq
import io
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Lock
from typing import Any

from gunicorn.http import errors as http_errors
from gunicorn.http.parser import RequestParser
from gunicorn.workers import base
from gunicorn.workers.gthread import ThreadWorker

from solarhost.server.connection import Connection, Phase
from solarhost.server.intake import TooLarge
from solarhost.server.pool import RequestThreads
from solarhost.server.refusals import refuse, status_of
from solarhost.server.repeats import Repeats
from solarhost.server.waits import STALLED, patience_s, worth

logger = logging.getLogger(__name__)

MAX_HELD_BYTES = 64 * 1024 * 1024  # of incomplete requests and unsent answers together
RECEIVE_BYTES = 16 * 1024
RECEIVE_BODY_BYTES = 256 * 1024
ACCEPTS_AT_ONCE = 64
ROOM = 16  # connections dropped at once when there are too many
TICK_S = 0.25
LAST_ANSWERS_S = 1.0  # after everything has stopped, for answers that are still on their way


class WholeRequestWorker(ThreadWorker):  # type: ignore[misc]
    """One process: this poller in the main thread, and up to `threads` request threads."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.orders: SimpleQueue[str] = SimpleQueue()  # "stop" or "detach", for the closer thread
        self.closed = Event()  # set by the closer thread when it is done
        self.heartbeat: Callable[[], None] | None = None
        self._threads: RequestThreads[Connection] = RequestThreads(self.cfg.threads, self._serve)
        self._repeats = Repeats()
        self._lock = Lock()  # guards the phase of each connection
        self._connections: dict[int, Connection] = {}  # by descriptor; the main thread's own
        self._listeners: dict[int, socket.socket] = {}
        self._listening = False
        self._holds_more = False  # some connection holds much more than it did

    @classmethod
    def check_config(cls, cfg: Any, log: Any) -> None:
        """The stock worker's advice on keep-alive does not apply here."""

    def init_process(self) -> None:
        self._epoll = select.epoll()
        self._listeners = {listener.fileno(): listener for listener in self.sockets}
        base.Worker.init_process(self)  # ThreadWorker's would make a pool and a poller of its own

    # Signals: the handlers note an order, the closer thread carries it out.

    def init_signals(self) -> None:
        super().init_signals()
        signal.signal(signal.SIGINT, self.handle_exit)
        signal.signal(signal.SIGHUP, self.handle_hup)

    def handle_exit(self, sig: int, frame: object) -> None:  # noqa: ARG002 - as signal calls it
        """SIGTERM and SIGINT: stop as `ON_SHUTDOWN` says."""
        self._order("stop")

    def handle_quit(self, sig: int, frame: object) -> None:  # noqa: ARG002
        """SIGQUIT: end at once, and leave the model servers to the next agent."""
        self._order("detach")

    def handle_hup(self, sig: int, frame: object) -> None:
        """SIGHUP, from a terminal that was closed: go on."""

    def _order(self, order: str) -> None:
        self.alive = False
        self.orders.put(order)

    # The poller. Everything from here to `_serve` runs in the main thread.

    def notify(self) -> None:
        super().notify()
        if self.heartbeat:
            self.heartbeat()

    def run(self) -> None:
        """Poll until the closer thread is done and the last answers are out."""
        self._epoll.register(self.PIPE[0], select.EPOLLIN)  # a signal writes into it
        next_sweep = 0.0
        while self.alive:
            self._turn(TICK_S)
            now = time.monotonic()
            if now >= next_sweep:
                next_sweep = now + TICK_S
                self._sweep(now)
                self._threads.relieve()
                self._listen(True)
            if not self.is_parent_alive():
                self._order("detach")
        self._finish()

    def _finish(self) -> None:
        self._listen(False)
        for listener in self.sockets:
            listener.close()
        deadline = time.monotonic() + self.cfg.graceful_timeout
        while not self.closed.is_set() and time.monotonic() < deadline:
            self._turn(0.05)
            self._sweep(time.monotonic())
        deadline = time.monotonic() + LAST_ANSWERS_S
        while self._has_answers_to_send() and time.monotonic() < deadline:
            self._turn(0.05)

    def _has_answers_to_send(self) -> bool:
        return any(connection.phase is not Phase.READING for connection in self._connections.values())

    def _turn(self, timeout_s: float) -> None:
        self.notify()
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

    def _drain_wake_up(self) -> None:
        with suppress(BlockingIOError):
            os.read(self.PIPE[0], 4096)

    def _listen(self, wanted: bool) -> None:
        """Start or stop to accept connections; meanwhile they wait in the kernel."""
        if wanted == self._listening:
            return
        for descriptor in self._listeners:
            if wanted:
                self._epoll.register(descriptor, select.EPOLLIN)
            else:
                self._epoll.unregister(descriptor)
        self._listening = wanted

    def _accept(self, listener: socket.socket) -> None:
        server = listener.getsockname()
        for _ in range(ACCEPTS_AT_ONCE):
            if len(self._connections) >= self.worker_connections and not self._make_room():
                self._listen(False)  # all are being answered; the next sweep tries again
                return
            try:
                raw, client = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    logger.warning("no connection can be accepted: %s", error.strerror)
                    if not self._make_room():
                        self._listen(False)
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
            self._refuse(connection, error.status, str(error))
            return
        if not data:
            self._drop(connection)
        elif whole and self.alive:
            self._begin(connection)
        elif whole:
            self._refuse(connection, 503, "the agent is stopping")
        else:
            if was_empty or intake.in_body != was_in_body:
                connection.since = time.monotonic()
            if intake.wants_continue():
                with suppress(OSError):
                    connection.raw.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._arm(connection, select.EPOLLIN)
            self._holds_more |= was_in_body

    def _begin(self, connection: Connection) -> None:
        """Answer what lies ready at once; all else is a request thread's."""
        request = connection.intake.sole_request()
        answer = self._repeats.answer(request) if request else None
        if answer is None:
            connection.phase = Phase.BUSY
            self._threads.submit(connection)
            return
        connection.intake.take()
        try:
            connection.sock.send(answer)
        except OSError:
            self._drop(connection)
        else:
            self._release(connection, keep_alive=True)

    def _send_rest(self, connection: Connection) -> None:
        try:
            done = connection.sock.send_unsent()
        except OSError:
            self._drop(connection)
            return
        if done:
            self._release(connection, connection.keep_alive)
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

    def _refuse(self, connection: Connection, status: int, detail: str) -> None:
        refuse(connection, status, detail)
        self._release(connection, keep_alive=False)

    def _sweep(self, now: float) -> None:
        """End the waits that took too long."""
        for connection in self._waiting():
            if now - connection.since <= patience_s(connection):
                continue
            if connection.phase is Phase.READING and len(connection.intake):
                self._refuse(connection, 408, "the request did not arrive in time")
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

    # Answering, in a request thread.

    def _serve(self, connection: Connection) -> None:
        """Answer the request that has arrived whole, and those that came right behind it."""
        while True:
            keep_alive = self._answer(connection)
            try:
                if not (keep_alive and len(connection.intake) and connection.intake.feed(b"")):
                    break
            except TooLarge as error:
                refuse(connection, error.status, str(error))
                keep_alive = False
                break
        self._release(connection, keep_alive)

    def _answer(self, connection: Connection) -> bool:
        """Answer one request; True when the connection may carry another."""
        connection.sock.begin()
        request = None
        received = connection.intake.take()
        try:
            request = next(RequestParser(self.cfg, [received], connection.client))
            # Decoded before the application runs, so that bad framing is a 400 and not its failure.
            request.body = io.BytesIO(request.body.read())
            keep_alive = bool(self.handle_request(request, connection))
            connection.sock.flush()
            if keep_alive and connection.sock.ready and not self.cfg.accesslog:
                self._repeats.remember(received, connection.sock.ready)
        except StopIteration:  # a stream has ended, or the answer broke off
            return False
        except (http_errors.ParseException, http_errors.NoMoreData) as error:
            refuse(connection, status_of(error), str(error))
            return False
        except OSError as error:
            logger.debug("client %s is gone: %s", connection.client[0], error)
            connection.sock.unsent.clear()
            return False
        except Exception:  # the thread outlives a failed request
            logger.exception("%s %s failed", request and request.method, request and request.path)
            refuse(connection, 500, "internal error; the agent's log says more")
            return False
        return keep_alive

    def _release(self, connection: Connection, keep_alive: bool) -> None:
        """Give an answered connection to the poller. The caller must not touch it afterwards."""
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

    def _arm(self, connection: Connection, events: int) -> None:
        """Have the poller look at it once; it is armed anew after each event."""
        self._epoll.modify(connection.descriptor, events | select.EPOLLONESHOT)
