"""The WebSocket below Socket.IO, made to tell when its peer was last heard."""

import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from websocket import ABNF, WebSocket, WebSocketException


class LiveSocket(WebSocket):
    """Notes each frame that comes in, and can be cut off from any thread.

    Args:
        on_heard: called for each frame, by the thread that reads; must be quick.
    """

    def __init__(self, on_heard: Callable[[], None], **options: Any):
        super().__init__(**options)
        self._on_heard = on_heard
        self.heard: float | None = None  # time.monotonic() of the last frame

    def recv_frame(self) -> ABNF:
        frame: ABNF = super().recv_frame()  # type: ignore[no-untyped-call]
        self.heard = time.monotonic()
        self._on_heard()
        return frame

    def ping_now(self) -> bool:
        """Send a ping unless that could block; its answer is a frame like any other."""
        if not self.connected or self.sock is None or not _is_writable(self.sock):
            return False
        try:
            self.ping()
        except (OSError, WebSocketException):
            return False  # the reader sees the end of the connection too, and reports it
        return True

    def cut(self) -> None:
        """End the connection at once: whoever reads or writes wakes up. The descriptor stays open."""
        if self.sock is not None:
            with suppress(OSError):  # it is not connected (any more)
                self.sock.shutdown(socket.SHUT_RDWR)


def _is_writable(sock: socket.socket) -> bool:
    poll = select.poll()
    try:
        poll.register(sock, select.POLLOUT)
        return any(flags & select.POLLOUT for _, flags in poll.poll(0))
    except (OSError, ValueError):  # closed meanwhile
        return False
