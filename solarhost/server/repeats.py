"""Requests that came before, byte for byte, answered again without a request thread.

A client that polls sends the same bytes each time. Once such a request has gone the whole way, through
gunicorn's parser and the application's check of the key, the application may say that its answer lies
ready (`AnswerSocket.ready`). From then on the poller answers it: no hand-over to a thread, no parsing,
and no wait behind the requests that hold the threads.
"""

from threading import Lock

from gunicorn import SERVER
from gunicorn.util import http_date

from solarhost.server.connection import MAX_UNSENT_BYTES, Ready

MAX_REQUEST_BYTES = 4 * 1024
MAX_REMEMBERED = 64


class Repeats:
    """The newest requests whose answers lie ready. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards changes; a lookup needs none
        self._ready: dict[bytes, Ready] = {}

    def remember(self, request: bytes, ready: Ready) -> None:
        """`request` was accepted, and its connection was kept."""
        if len(request) > MAX_REQUEST_BYTES or b" HTTP/1.1\r\n" not in request:
            return
        with self._lock:
            self._ready[request] = ready
            if len(self._ready) > MAX_REMEMBERED:
                del self._ready[next(iter(self._ready))]

    def answer(self, request: bytes) -> bytes | None:
        """The answer as it goes to the client; None for a request that a thread has to answer."""
        ready = self._ready.get(request)
        if ready is None:
            return None
        headers, body = ready()
        if len(body) > MAX_UNSENT_BYTES // 2:  # the poller must never wait for a client to read
            return None
        lines = [
            "HTTP/1.1 200 OK",
            f"Server: {SERVER}",
            f"Date: {http_date()}",
            "Connection: keep-alive",
            *(f"{name}: {value}" for name, value in headers),
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
