"""The threads that answer requests."""

import logging
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Generic, TypeVar

from solarhost.threads import NoThread, begin

logger = logging.getLogger(__name__)

Job = TypeVar("Job")


class RequestThreads(Generic[Job]):
    """Runs `work` on what is submitted, in up to `limit` threads that start when they are needed.

    Some jobs wait for minutes (a start, a download, a stream). When all threads are held, `relieve`
    gives what waits behind them threads beyond the limit, which end with the last of it.

    They are daemons: a job that never ends can't keep the process from exiting.
    """

    def __init__(self, limit: int, work: Callable[[Job], None]):
        self._limit = limit
        self._work = work
        self._queue: SimpleQueue[Job] = SimpleQueue()
        self._lock = Lock()  # guards the counts below
        self._started = 0
        self._idle = 0  # threads that wait, less those that a job in the queue will wake
        self._backlog = 0  # jobs in the queue that no thread waits for
        self._backlog_taken = 0  # jobs that left the backlog since the last `relieve`
        self._backlog_before = 0  # the backlog at the last `relieve`

    def submit(self, job: Job) -> None:
        """Have `job` worked on by the next free thread."""
        self._queue.put(job)
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif self._started < self._limit and self._start(f"request-{self._started + 1}"):
                self._started += 1
            else:
                self._backlog += 1

    def relieve(self) -> None:
        """Start a thread for each job that has waited for one since the last call."""
        with self._lock:
            stuck = max(0, self._backlog_before - self._backlog_taken)
            while stuck and self._start("request-extra", ends_when_idle=True):
                stuck -= 1
                self._backlog -= 1
            self._backlog_before, self._backlog_taken = self._backlog, 0

    def _start(self, name: str, *, ends_when_idle: bool = False) -> bool:
        """False when the system allows no further thread: then the job waits in the backlog."""
        try:
            begin(Thread(target=self._run, args=(ends_when_idle,), name=name, daemon=True))
        except NoThread as error:
            logger.warning("a request waits: %s", error)
            return False
        return True

    def _run(self, ends_when_idle: bool) -> None:
        while True:
            self._work(self._queue.get())
            with self._lock:
                if self._backlog:
                    self._backlog -= 1
                    self._backlog_taken += 1
                elif ends_when_idle:
                    return
                else:
                    self._idle += 1
