"""Named threads with an owner and an end."""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Event, Lock, Thread
from typing import Generic, TypeVar

from solarhost import shortages
from solarhost.errors import Unavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")


class NoThread(Unavailable):
    """The system allows this process no further thread; nothing was started."""

    retry_after_s = 5

    def __init__(self, name: str):
        super().__init__(f"no thread can be started for {name}: {shortages.threads()}")


def begin(thread: Thread) -> None:
    """Start a thread that was just made. Raises NoThread."""
    try:
        thread.start()
    except RuntimeError as error:  # all that Python says is "can't start new thread"
        raise NoThread(thread.name) from error


class PeriodicThread(Thread):
    """Calls `work` every `interval_s` until `stop`; a failed call is counted, logged, and tried again.

    Of failures in a row the first is logged, then ever fewer.
    """

    def __init__(self, name: str, interval_s: float, work: Callable[[], None]):
        super().__init__(name=name, daemon=True)
        self._interval_s = interval_s
        self._work = work
        self._stopping = Event()  # `_stop` is a name of Thread's own
        self.errors = 0
        self.consecutive_errors = 0  # `/health` reports a loop that keeps failing

    def run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            try:
                self._work()
            except Exception:  # a loop outlives its failures
                self.errors += 1
                self.consecutive_errors += 1
                if self.consecutive_errors.bit_count() == 1:  # 1, 2, 4, …: a full disk need not fill the log
                    logger.exception(
                        "%s failed (%d in a row), tried again in %.1f s",
                        self.name,
                        self.consecutive_errors,
                        self._interval_s,
                    )
            else:
                self.consecutive_errors = 0

    def stop(self) -> None:
        """Ask it to end; whoever started it joins it."""
        self._stopping.set()


class ThreadGroup:
    """Threads of one owner, so that it can join those it started. Safe from any thread.

    Finished threads are dropped when a new one is added, so the group never grows beyond the live.
    """

    def __init__(self) -> None:
        self._lock = Lock()  # guards _threads
        self._threads: list[Thread] = []

    def spawn(self, name: str, target: Callable[[], None]) -> Thread:
        """Start `target` in a daemon thread called `name` and remember it. Raises NoThread."""
        thread = Thread(target=target, name=name, daemon=True)
        with self._lock:
            begin(thread)
            self._threads = [*(t for t in self._threads if t.is_alive()), thread]
        return thread

    def join_by(self, deadline: float) -> list[Thread]:
        """Join all by one `time.monotonic()` deadline; return those still alive."""
        with self._lock:
            threads = list(self._threads)
        return join_by(threads, deadline)


class Shared(Generic[T]):
    """A call that is dear, made once for all who ask while the one before it runs. Safe from any thread.

    What anybody gets began after he asked.
    """

    def __init__(self, call: Callable[[], T]):
        self._call = call
        self._calling = Lock()  # held while it runs
        self._lock = Lock()  # guards _next
        self._next: Future[T] | None = None  # of the call that has not begun

    def __call__(self) -> T:
        """Raises what the call does, to all who share it."""
        with self._lock:
            joined = self._next
            mine = joined or Future()
            self._next = mine
        if joined is None:
            with self._calling:
                with self._lock:
                    self._next = None
                try:
                    mine.set_result(self._call())
                except BaseException as error:  # those who share it must not wait for ever
                    mine.set_exception(error)
                    raise
        return mine.result()


def join_by(threads: Sequence[Thread], deadline: float) -> list[Thread]:
    """Join all that were started by one `time.monotonic()` deadline; return those still alive."""
    for thread in threads:
        if thread.ident is not None:
            thread.join(max(0.0, deadline - time.monotonic()))
    return [thread for thread in threads if thread.is_alive()]
