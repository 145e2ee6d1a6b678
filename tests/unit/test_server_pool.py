"""The threads that answer requests."""

import threading
from collections.abc import Iterator

import pytest

from solarhost.server.pool import RequestThreads
from tests.agent import wait_until


class Work:
    """Each job is an event that it waits for."""

    def __init__(self) -> None:
        self.begun: list[threading.Event] = []
        self.done: list[threading.Event] = []
        self.threads: set[threading.Thread] = set()

    def __call__(self, job: threading.Event) -> None:
        self.threads.add(threading.current_thread())
        self.begun.append(job)
        job.wait(10)
        self.done.append(job)


@pytest.fixture
def work() -> Iterator[Work]:
    work = Work()
    yield work
    for job in work.begun:
        job.set()


def submit(pool: RequestThreads, count: int) -> list[threading.Event]:
    jobs = [threading.Event() for _ in range(count)]
    for job in jobs:
        pool.submit(job)
    return jobs


def test_no_more_threads_than_the_limit_until_it_is_relieved(work: Work) -> None:
    pool = RequestThreads(2, work)
    jobs = submit(pool, 5)
    wait_until(lambda: len(work.begun) == 2, 5, "two jobs")
    pool.relieve()  # notes that three wait
    assert len(work.begun) == 2
    pool.relieve()
    wait_until(lambda: len(work.begun) == 5, 5, "all jobs")
    for job in jobs:
        job.set()
    wait_until(lambda: len(work.done) == 5, 5, "their ends")


def test_a_backlog_that_moves_needs_no_relief(work: Work) -> None:
    pool = RequestThreads(1, work)
    jobs = submit(pool, 3)
    pool.relieve()
    for job in jobs:
        job.set()
    wait_until(lambda: len(work.done) == 3, 5, "their ends")
    more = submit(pool, 2)
    wait_until(lambda: len(work.begun) == 4, 5, "the next")
    pool.relieve()
    assert len(work.begun) == 4
    more[0].set()
    wait_until(lambda: len(work.begun) == 5, 5, "the last")


def test_a_free_thread_is_used_before_a_new_one_is_started(work: Work) -> None:
    pool = RequestThreads(8, work)
    for _ in range(20):
        (job,) = submit(pool, 1)
        job.set()
        wait_until(lambda job=job: job in work.done and pool._idle, 5, "its end")
    assert len(work.threads) == 1
