"""gunicorn's worker with threads, for clients that may be slow.

The stock worker gives a thread to each connection that sends a byte, and waits for clients in its main
loop, so a few that send or read nothing stop it for all. Here the main thread polls, and a connection
gets a thread only when its request is there. Until then it stays in the kernel: nothing is buffered
here, and the poller wakes only for more than it has seen (`SO_RCVLOWAT`).
"""

import errno
import logging
import select
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from threading import Lock
from typing import Any

from gunicorn.http import wsgi
from gunicorn.http.errors import ParseException
from gunicorn.workers.gthread import ThreadWorker

from hf_server import render
from hf_server.connection import MAX_PEEK_BYTES, Connection, Intake
from hf_server.errors import ApiError, HeadTooLarge, RequestTimeout

REQUEST_S = 30  # from a connection's or a request's first byte until a thread can begin
LINGER_S = 30  # for a client that goes on sending after its last answer
_TICK_S = 1.0
_DISCARD_BYTES = 256 * 1024
_OUT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

logger = logging.getLogger("hf_server")


class PatientWorker(ThreadWorker):  # type: ignore[misc]
    """One process: a poller in the main thread, and threads that answer."""

    alive: bool

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._lock = Lock()  # guards `busy` of each connection against its closing
        self._intake = Intake()
        self._connections: dict[int, Connection] = {}  # by descriptor; the poller's own
        self._listeners = {listener.fileno(): listener for listener in self.sockets}
        self._listening = False

    def init_process(self) -> None:
        self._epoll = select.epoll()
        super().init_process()

    def get_thread_pool(self) -> ThreadPoolExecutor:
        """A thread for each connection, if all are busy: a slow one must not hold up the others."""
        return ThreadPoolExecutor(self.worker_connections, "request")

    # Polling, in the main thread.

    def run(self) -> None:
        self._epoll.register(self.method_queue.fileno(), select.EPOLLIN)
        sweep_at = 0.0
        while self.alive:
            if time.monotonic() >= sweep_at:
                sweep_at = time.monotonic() + _TICK_S
                self.notify()
                self._sweep()
                self._listen(True)
                self.alive = self.alive and self.is_parent_alive()
            self._turn(_TICK_S)
        self._listen(False)
        for listener in self.sockets:
            listener.close()
        deadline = time.monotonic() + self.cfg.graceful_timeout
        while any(c.busy for c in self._connections.values()) and time.monotonic() < deadline:
            self._turn(0.05)
        self.tpool.shutdown(wait=False)

    def _turn(self, timeout_s: float) -> None:
        for descriptor, _ in self._epoll.poll(timeout_s):
            if connection := self._connections.get(descriptor):
                self._look(connection)
            elif listener := self._listeners.get(descriptor):
                self._accept(listener)
            else:
                self.method_queue.run_callbacks(None)

    def _listen(self, wanted: bool) -> None:
        """Start or stop to accept connections; meanwhile they wait in the kernel."""
        if wanted == self._listening:
            return
        for descriptor, listener in self._listeners.items():
            listener.setblocking(False)
            if wanted:
                self._epoll.register(descriptor, select.EPOLLIN)
            else:
                self._epoll.unregister(descriptor)
        self._listening = wanted

    def _accept(self, listener: Any) -> None:
        try:
            if len(self._connections) >= self.worker_connections:
                raise OSError(errno.EMFILE, "as many connections are open as may be")
            sock, client = listener.accept()
            connection = Connection(sock, client, listener.getsockname(), self.cfg, self._intake)
            self._epoll.register(connection.descriptor, select.EPOLLIN | select.EPOLLONESHOT)
        except OSError as error:
            if error.errno in _OUT_OF and not self._make_room():
                self._listen(False)  # until the next sweep
            return
        connection.deadline = time.monotonic() + REQUEST_S
        self._connections[connection.descriptor] = connection

    def _look(self, connection: Connection) -> None:
        """Something arrived, or lies ahead of what a thread has read."""
        had_begun = connection.begun
        try:
            if connection.lingers:
                if not connection.sock.recv(_DISCARD_BYTES, socket.MSG_DONTWAIT):
                    raise ConnectionResetError
            elif connection.has_request():
                self._hand_over(connection)
                return
            elif not had_begun:
                connection.deadline = time.monotonic() + REQUEST_S
        except BlockingIOError:
            pass
        except HeadTooLarge as error:
            self._refuse(connection, error)
            self._linger(connection)
            return
        except OSError:
            self._drop(connection)
            return
        self._arm(connection)

    def _hand_over(self, connection: Connection) -> None:
        connection.busy = True
        try:
            self.tpool.submit(self._serve, connection)
        except RuntimeError as error:  # it is in the pool's queue all the same
            logger.warning("a request waits for a thread: %s", error)

    def _sweep(self) -> None:
        """End the waits that took too long."""
        now = time.monotonic()
        for connection in self._waiting():
            if connection.deadline < now:
                if connection.begun:
                    self._refuse(connection, RequestTimeout(f"the request did not arrive in {REQUEST_S} s"))
                    self._linger(connection)
                else:
                    self._drop(connection)

    def _make_room(self) -> bool:
        """Drop the connection whose time ends first; False when all are being answered."""
        waiting = self._waiting()
        if waiting:
            self._drop(min(waiting, key=lambda connection: connection.deadline))
        return bool(waiting)

    def _waiting(self) -> list[Connection]:
        return [connection for connection in self._connections.values() if not connection.busy]

    def _refuse(self, connection: Connection, error: ApiError) -> None:
        """Answer without the app; the caller closes."""
        body = render.encoded(error.body())
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with suppress(OSError):
            connection.sock.send(head.encode() + body, socket.MSG_DONTWAIT)

    def _drop(self, connection: Connection) -> None:
        with self._lock:  # its thread may just be arming it
            del self._connections[connection.descriptor]
            connection.sock.close()

    # Answering, in a request thread.

    def _serve(self, connection: Connection) -> None:
        connection.reader.begin()
        keep = self._answer(connection)
        connection.reader.end()
        if not keep:
            self._linger(connection)
        elif connection.reader.buf.getvalue():
            self.method_queue.defer(self._look, connection)
        else:
            connection.deadline = time.monotonic() + self.cfg.keepalive
            self._arm(connection)

    def _answer(self, connection: Connection) -> bool:
        """Answer one request; True when the connection may carry another."""
        try:
            request = next(connection.parser)
        except ApiError as error:
            self._refuse(connection, error)
            return False
        except ParseException as error:
            self.handle_error(None, connection.sock, connection.client, error)
            return False
        except (StopIteration, OSError):
            return False
        try:
            keep = self._respond(request, connection)
            connection.reader.waits = False  # for the rest of a body that nobody read
            return keep and bool(connection.parser.finish_body(max_bytes=MAX_PEEK_BYTES))
        except OSError as error:
            logger.debug("client %s is gone: %s", connection.client[0], error)
        except Exception:  # the thread outlives a failed request
            logger.exception("event=request_failed path=%s", request.path)
        return False

    def _respond(self, request: Any, connection: Connection) -> bool:
        """True when the answer said that the connection stays open. Raises OSError."""
        response, environ = wsgi.create(
            request, connection.sock, connection.client, connection.server, self.cfg
        )
        if not self.alive:
            response.force_close()
        pieces = self.wsgi(environ, response.start_response)
        try:
            for piece in pieces:
                response.write(piece)
            response.close()
        finally:
            if hasattr(pieces, "close"):
                pieces.close()
        return not response.should_close()

    def _linger(self, connection: Connection) -> None:
        """Half close; closing with bytes unread would reset the answer on its way to the client."""
        with suppress(OSError):
            connection.sock.shutdown(socket.SHUT_WR)
        connection.lingers = True
        connection.begun = False
        connection.deadline = time.monotonic() + LINGER_S
        connection.wake_on(1)
        self._arm(connection)

    def _arm(self, connection: Connection) -> None:
        """Give it (back) to the poller, which looks when something arrives."""
        with self._lock:
            connection.busy = False
            self._epoll.modify(connection.descriptor, select.EPOLLIN | select.EPOLLONESHOT)
