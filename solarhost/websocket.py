"""The socket of one WebSocket stream, shared by its two threads.

simple_websocket reads in a thread of its own and answers pings and closes from there, while the
stream's thread sends. It writes to the socket without a lock and without a limit; so it is given this
object in the socket's place, where every write is whole, and every wait is bounded and can be ended.
"""

import os
import select
import socket
import time
from threading import Lock

PING_FRAME = b"\x89\x00"
MAX_INPUT_BYTES = 64 * 1024  # of a client that has nothing to say but pongs and a close


def close_frame(code: int, reason: str) -> bytes:
    """A close frame, with what of `reason` it has room for."""
    cut = reason.encode()[:123].decode("utf-8", "ignore")  # within no character
    payload = code.to_bytes(2, "big") + cut.encode()
    return bytes((0x88, len(payload))) + payload


class StreamSocket:
    """Whole writes, pings, and an end that wakes whoever waits. Safe from any thread."""

    def __init__(self, raw: socket.socket, ping_interval_s: float):
        """Take over `raw`, which must not block; closing it stays with the server.

        Args:
            ping_interval_s: a peer that shows no sign of life from one ping to the next is gone, and
                so is one that takes no byte of what we send for that long.
        """
        self._raw = raw
        self._ping_interval_s = ping_interval_s
        self._write_lock = Lock()  # one frame, or one batch of them, at a time
        self._end_event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._next_ping = time.monotonic() + ping_interval_s
        self._heard = True
        self._received = 0
        self.ended = False

    def send(self, data: bytes) -> int:
        """Send all of `data`, frames that nothing may come between.

        Raises:
            OSError: the stream has ended, or the peer takes nothing.
        """
        rest = memoryview(data)
        with self._write_lock:
            while rest:
                if self.ended:
                    raise ConnectionAbortedError("the stream has ended")
                try:
                    rest = rest[self._raw.send(rest, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    if not self._wait(select.POLLOUT, self._ping_interval_s):
                        self.end()  # part of a frame is out: nothing may follow it
                        raise TimeoutError("the peer does not read") from None
        return len(data)

    def recv(self, size: int) -> bytes:
        """Wait for input; pings meanwhile.

        Raises:
            OSError: the stream has ended, the peer is gone, or it talks too much.
        """
        while True:
            if self._wait(select.POLLIN, self._next_ping - time.monotonic()):
                if self.ended:
                    raise ConnectionAbortedError("the stream has ended")
                data = self._raw.recv(size)
                self._heard = True
                self._received += len(data)
                if self._received > MAX_INPUT_BYTES:
                    raise ConnectionAbortedError("a stream takes no input")
                return data
            if not self._heard:
                raise TimeoutError("the peer did not answer a ping")
            self._heard = False
            self._received = 0
            self._next_ping = time.monotonic() + self._ping_interval_s
            self.send(PING_FRAME)

    def end(self) -> None:
        """Wake and stop both threads."""
        self.ended = True
        os.eventfd_write(self._end_event, 1)

    def close(self) -> None:
        """What simple_websocket calls when its thread is done."""
        self.end()

    def release(self) -> None:
        """Both threads are done with it."""
        os.close(self._end_event)

    def _wait(self, event: int, timeout_s: float) -> bool:
        """True when the socket is ready or the stream has ended; False when neither came in time."""
        poll = select.poll()
        poll.register(self._raw, event)
        poll.register(self._end_event, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_s) * 1000))
