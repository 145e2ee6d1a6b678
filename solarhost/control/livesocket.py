"""The WebSocket below Socket.IO, made to tell when its peer was last heard."""

import select
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any

from websocket import ABNF, WebSocket, WebSocketException, WebSocketTimeoutException


class LiveSocket(WebSocket):
    """Notes each frame that comes in, and can be cut off from any thread.

    Args:
        on_heard: called for each frame, by the thread that reads; must be quick.
    """

    def __init__(self, on_heard: Callable[[], None], **options: Any):
        super().__init__(**options)
        # One thread reads and another writes, but a TLS connection stands only one at a time: without this
        # lock busy connections break every few seconds. Who waits for the network waits outside it.
        self._tls_lock = Lock()
        self._on_heard = on_heard
        self.heard: float | None = None  # time.monotonic() of the last frame

    def recv_frame(self) -> ABNF:
        frame: ABNF = super().recv_frame()  # type: ignore[no-untyped-call]
        self.heard = time.monotonic()
        self._on_heard()
        return frame

    def _recv(self, bufsize: int) -> bytes:
        sock = self.sock
        if not isinstance(sock, ssl.SSLSocket):
            return self._recv_unlocked(bufsize)
        if not sock.pending() and not _is_ready(sock, select.POLLIN, sock.gettimeout()):
            raise WebSocketTimeoutException("nothing came")
        with self._tls_lock:
            return self._recv_unlocked(bufsize)

    def _recv_unlocked(self, bufsize: int) -> bytes:
        data: bytes = super()._recv(bufsize)  # type: ignore[no-untyped-call]
        return data

    def _send(self, data: bytes | str) -> int:
        sock = self.sock
        if not isinstance(sock, ssl.SSLSocket):
            return super()._send(data)
        if not _is_ready(sock, select.POLLOUT, sock.gettimeout()):
            raise WebSocketTimeoutException("nothing was taken")
        with self._tls_lock:
            return super()._send(data)

    def ping_now(self) -> bool:
        """Send a ping unless that could block; its answer is a frame like any other."""
        sock = self.sock
        if not self.connected or sock is None or not _is_ready(sock, select.POLLOUT, 0):
            return False
        try:
            self.ping()
        except (OSError, WebSocketException):
            return False  # the reader sees the end of the connection too, and reports it
        return True

    def cut(self) -> None:
        """End the connection at once: whoever reads or writes wakes up. The descriptor stays open."""
        sock = self.sock
        if sock is not None:
            with suppress(OSError):  # it is not connected (any more)
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # TLS's own would drop what is still unread


def _is_ready(sock: socket.socket, event: int, timeout_s: float | None) -> bool:
    """Wait until `sock` can be read or written, or has ended; False when that does not happen in time."""
    poll = select.poll()
    try:
        poll.register(sock, event)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))
    except (OSError, ValueError):  # closed meanwhile, which the caller is about to see
        return True
