"""How other threads reach a job's thread, which mostly waits for Docker."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock

from solarhost.containers.longcall import LongCall


class Cancelled(BaseException):  # not an error, so that no handler of errors takes it for one
    """Unwinds a job's thread to the place that records the cancellation."""


class Detached(BaseException):
    """Unwinds a job's thread when the agent ends; nothing is recorded, the next agent goes on."""


class Interrupts:
    """Two orders for one job: cancel it, or leave it to the next agent. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards _call against an order that comes just before it
        self._call: LongCall | None = None
        self._cancelled = Event()
        self._detached = Event()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        self._order(self._cancelled)

    def detach(self) -> None:
        self._order(self._detached)

    def check(self) -> None:
        """Raises Detached or Cancelled, if so ordered."""
        self.check_detached()
        if self.cancelled:
            raise Cancelled

    def check_detached(self) -> None:
        """Raises Detached, if so ordered."""
        if self._detached.is_set():
            raise Detached

    def pause(self, seconds: float) -> None:
        """Wait; raises Detached as soon as so ordered."""
        self._detached.wait(seconds)
        self.check_detached()

    @contextmanager
    def cutting(self, call: LongCall) -> Iterator[None]:
        """Inside, an order cuts `call`, whose reader then gets `CallCut`; afterwards it is closed."""
        with self._lock:
            self._call = call
            if self.cancelled or self._detached.is_set():
                call.cut()
        try:
            yield
        finally:
            with self._lock:
                self._call = None
            call.close()

    def _order(self, order: Event) -> None:
        with self._lock:
            order.set()
            if self._call is not None:
                self._call.cut()
