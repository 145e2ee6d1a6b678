"""A thread that reads one source again and again, so that nobody else ever waits for it."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sample(Generic[T]):
    """One reading; `begun` is the `time.monotonic()` at which it was begun."""

    value: T
    begun: float

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.begun


class Sampler(Thread, Generic[T]):
    """Calls `read` every `interval_s` and keeps the newest result.

    A hung `read` holds this thread only: `latest` then grows old. Ends after `stop`, as soon as
    `read` returns.
    """

    def __init__(self, name: str, interval_s: float, read: Callable[[], T]):
        super().__init__(name=name, daemon=True)
        self._interval_s = interval_s
        self._read = read
        self._changed = Condition()  # guards the fields below
        self._latest: Sample[T] | None = None
        self._wanted = 0.0  # somebody waits for a reading begun at this moment or later
        self._ending = False

    @property
    def latest(self) -> Sample[T] | None:
        with self._changed:
            return self._latest

    def wait_for_sample(self, timeout_s: float) -> bool:
        """False when not even the first reading was there in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._latest is not None, max(0.0, timeout_s))

    def fresh(self, timeout_s: float) -> bool:
        """Have the source read now; False when that takes longer than `timeout_s`."""
        with self._changed:
            asked = self._wanted = time.monotonic()
            self._changed.notify_all()
            return self._changed.wait_for(
                lambda: self._latest is not None and self._latest.begun >= asked, timeout_s
            )

    def run(self) -> None:
        begun = 0.0
        while self._wait_for_turn(begun):
            begun = time.monotonic()
            try:
                value = self._read()
            except Exception:  # a loop outlives its failures; the reading's age tells
                logger.exception("%s failed, tried again in %.1f s", self.name, self._interval_s)
                continue
            with self._changed:
                self._latest = Sample(value, begun)
                self._changed.notify_all()

    def stop(self) -> None:
        """Ask it to end; whoever started it joins it."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    def _wait_for_turn(self, begun: float) -> bool:
        """False when it shall end."""
        with self._changed:
            if begun:
                self._changed.wait_for(lambda: self._ending or self._wanted > begun, self._interval_s)
            return not self._ending
