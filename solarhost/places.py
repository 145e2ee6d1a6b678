"""Request threads that may be held for long, so that some always stay free for short calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from solarhost.errors import Unavailable

RESERVED_SHARE = 8  # one thread of so many is never held


class NoPlace(Unavailable):
    """As many calls wait, and as many streams are open, as the threads allow."""

    retry_after_s = 5

    def __init__(self, limit: int):
        super().__init__(
            f"{limit} waiting calls and streams hold all threads that may be held: "
            "try again in a moment, or raise THREADS"
        )


class Places:
    """Counts streams and calls that wait (a start, a stop, a pull). Safe from any thread."""

    def __init__(self, threads: int):
        self.limit = threads - max(1, threads // RESERVED_SHARE)
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
