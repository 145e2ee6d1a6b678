"""Calls that wait for long, counted so that connections always stay free for short ones.

Each holds a request thread and a connection. Threads grow with need (`server.pool`), connections don't.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from solarhost.errors import Unavailable

MAX_HELD = 384  # of the server's 512 connections


class NoPlace(Unavailable):
    """As many calls wait, and as many streams are open, as there may be."""

    retry_after_s = 5

    def __init__(self, limit: int):
        super().__init__(f"{limit} calls and streams are waiting, which is the limit: try again in a moment")


class Places:
    """Counts streams and calls that wait (a start, a stop, a pull). Safe from any thread."""

    def __init__(self, limit: int = MAX_HELD):
        self.limit = limit
        self._lock = Lock()  # guards _held
        self._held = 0

    def enter(self) -> None:
        """Hold one until `leave`.

        Raises:
            NoPlace: all are held.
        """
        with self._lock:
            if self._held >= self.limit:
                raise NoPlace(self.limit)
            self._held += 1

    def leave(self) -> None:
        with self._lock:
            self._held -= 1

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold one while the block runs. Raises NoPlace."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    @property
    def held(self) -> int:
        return self._held
