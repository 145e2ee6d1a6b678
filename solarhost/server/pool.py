"""The threads that answer requests."""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Generic, TypeVar

Job = TypeVar("Job")


class RequestThreads(Generic[Job]):
    """Runs `work` on what is submitted, in up to `limit` threads that start when they are needed.

    They are daemons: a request that never ends can't keep the process from exiting.
    """

    def __init__(self, limit: int, work: Callable[[Job], None]):
        self._limit = limit
        self._work = work
        self._queue: SimpleQueue[Job] = SimpleQueue()
        self._lock = Lock()  # guards the counts below
        self._started = 0
        self._idle = 0  # threads that wait, less those that a job in the queue will wake
        self._backlog = 0  # jobs in the queue that no thread waits for

    def submit(self, job: Job) -> None:
        """Have `job` worked on by the next free thread."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif self._started < self._limit:
                self._started += 1
                Thread(target=self._run, name=f"request-{self._started}", daemon=True).start()
            else:
                self._backlog += 1
        self._queue.put(job)

    def _run(self) -> None:
        while True:
            self._work(self._queue.get())
            with self._lock:
                if self._backlog:
                    self._backlog -= 1
                else:
                    self._idle += 1
