"""gunicorn's threaded worker, whose threads get whole requests only.

The stock worker gives a thread to each connection that sent one byte, so a few dozen slow clients
stop it. Here the main thread is a poller that holds a connection until its request is whole; request
threads see complete requests, and never wait for a client to read (`connection`).
"""

import io
import logging
import signal
import time
from queue import SimpleQueue
from threading import Event
from typing import Any

from gunicorn.http import errors as http_errors
from gunicorn.http.parser import RequestParser
from gunicorn.workers import base
from gunicorn.workers.gthread import ThreadWorker

from solarhost.server.connection import Connection, Phase
from solarhost.server.intake import TooLarge
from solarhost.server.poller import Poller
from solarhost.server.pool import RequestThreads
from solarhost.server.refusals import refuse, status_of
from solarhost.server.repeats import Repeats

logger = logging.getLogger(__name__)

TICK_S = 0.25
LAST_ANSWERS_S = 1.0  # after everything has stopped, for answers that are still on their way


class WholeRequestWorker(ThreadWorker):  # type: ignore[misc]
    """One process: a poller in the main thread, and up to `threads` request threads."""

    _poller: Poller

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.orders: SimpleQueue[str] = SimpleQueue()  # "stop" or "detach", for the closer thread
        self.closed = Event()  # set by the closer thread when it is done
        self._threads: RequestThreads[Connection] = RequestThreads(self.cfg.threads, self._serve)
        self._repeats = Repeats()

    @classmethod
    def check_config(cls, cfg: Any, log: Any) -> None:
        """The stock worker's advice on keep-alive does not apply here."""

    def init_process(self) -> None:
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

    # Polling, in the main thread.

    def run(self) -> None:
        """Poll until the closer thread is done and the last answers are out."""
        # A signal writes into the pipe.
        self._poller = Poller(self.sockets, self.PIPE[0], self.worker_connections, self._begin)
        next_sweep = 0.0
        while self.alive:
            self._turn(TICK_S)
            now = time.monotonic()
            if now >= next_sweep:
                next_sweep = now + TICK_S
                self._poller.sweep()
                self._threads.relieve()
                self._poller.listen(True)
            if not self.is_parent_alive():
                self._order("detach")
        self._finish()

    def _finish(self) -> None:
        self._poller.listen(False)
        for listener in self.sockets:
            listener.close()
        deadline = time.monotonic() + self.cfg.graceful_timeout
        while not self.closed.is_set() and time.monotonic() < deadline:
            self._turn(0.05)
            self._poller.sweep()
        deadline = time.monotonic() + LAST_ANSWERS_S
        while self._poller.has_answers_to_send() and time.monotonic() < deadline:
            self._turn(0.05)

    def _turn(self, timeout_s: float) -> None:
        self.notify()
        self._poller.turn(timeout_s)

    def _begin(self, connection: Connection) -> None:
        """A request is whole. What lies ready is answered at once; all else is a request thread's."""
        if not self.alive:
            self._poller.refuse(connection, 503, "the agent is stopping")
            return
        request = connection.intake.sole_request()
        answer = self._repeats.answer(request) if request else None
        if answer is None:
            connection.phase = Phase.BUSY
            self._threads.submit(connection)
        else:
            connection.intake.take()
            self._poller.answer(connection, answer)

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
        self._poller.release(connection, keep_alive)

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
