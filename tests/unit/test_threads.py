"""While the system allows this process no further thread: a clear refusal, and nothing half done."""

import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

import pytest
from flask.testing import FlaskClient

from solarhost.host import Host
from solarhost.server.pool import RequestThreads
from solarhost.threads import NoThread, PeriodicThread, Shared, ThreadGroup
from tests.agent import free_port, wait_until
from tests.conftest import Exhausted
from tests.in_process import client_of, settings_in


@pytest.fixture
def client(tmp_path: Path) -> FlaskClient:
    nobody = f"http://127.0.0.1:{free_port()}"
    settings = settings_in(tmp_path, hf_endpoint=nobody, pull_retries=0, max_retries=0)
    return client_of(Host(settings))


def test_a_group_remembers_only_threads_that_began(exhausted: Exhausted) -> None:
    group = ThreadGroup()
    with exhausted(), pytest.raises(NoThread, match=r"thread can be started for work.*pids\.max"):
        group.spawn("work", lambda: None)
    assert group.join_by(0.0) == []
    ran = threading.Event()
    group.spawn("work", ran.set)
    assert ran.wait(10)


def test_a_loop_that_keeps_failing_says_so_ever_less_often(caplog: pytest.LogCaptureFixture) -> None:
    calls = threading.Semaphore(0)

    def fail() -> None:
        calls.release()
        raise OSError("no space left")

    loop = PeriodicThread("loop-of-trouble", 0.001, fail)
    with caplog.at_level("ERROR", "solarhost.threads"):
        loop.start()
        for _ in range(20):
            assert calls.acquire(timeout=10)
        loop.stop()
        loop.join()
    told = [record.getMessage().split("(")[1].split()[0] for record in caplog.records]
    assert told[:5] == ["1", "2", "4", "8", "16"]
    assert len(told) == loop.consecutive_errors.bit_length()


def test_a_start_that_finds_no_thread_changes_nothing(client: FlaskClient, exhausted: Exhausted) -> None:
    config = {"backend_type": "llamacpp", "alias": "m", "model": "/nowhere.gguf", "port": free_port()}
    path = f"/instances/{client.post('/instances', json={'config': config}).get_json()['instance']['id']}"
    with exhausted():
        refused = client.post(f"{path}/start")
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
    assert client.get(path).get_json()["status"] == "stopped"
    assert client.post(f"{path}/start").status_code == 500  # there is no such file, says a thread
    assert client.get(path).get_json()["status"] == "failed"


def test_a_pull_that_finds_no_thread_holds_up_no_other(client: FlaskClient, exhausted: Exhausted) -> None:
    body = {"source": "huggingface", "source_uri": "huggingface://org/m", "model_id": "org/m"}
    with exhausted():
        assert client.post("/models/pull", json=body).status_code == 503
    assert client.get("/models/pulls").get_json() == []
    assert client.post("/models/pull", json=body).status_code == 502  # nobody listens there


def test_requests_wait_until_a_thread_can_be_started(exhausted: Exhausted) -> None:
    done: list[int] = []
    pool = RequestThreads(2, done.append)
    with exhausted():
        pool.submit(1)
        pool.submit(2)
        pool.relieve()
        pool.relieve()
        assert done == []
    pool.relieve()
    wait_until(lambda: sorted(done) == [1, 2], 10, "both jobs")
    pool.submit(3)
    wait_until(lambda: 3 in done, 10, "one that finds a thread at once")


def test_those_who_ask_during_a_call_share_the_next_one() -> None:
    begun: SimpleQueue[int] = SimpleQueue()
    go_on: SimpleQueue[None] = SimpleQueue()
    numbers = count(1)

    def call() -> int:
        number = next(numbers)
        begun.put(number)
        go_on.get(timeout=10)
        if number == 3:
            raise OSError("refused")
        return number

    shared = Shared(call)
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(shared)
        assert begun.get(timeout=10) == 1
        asked = [pool.submit(shared) for _ in range(3)]
        wait_until(lambda: _threads_in(Future.result) == 2, 10, "two to join the one that calls next")
        go_on.put(None)
        assert begun.get(timeout=10) == 2
        late = [pool.submit(shared) for _ in range(2)]
        wait_until(lambda: _threads_in(Future.result) == 3, 10, "one to join the other")
        go_on.put(None)
        assert begun.get(timeout=10) == 3
        go_on.put(None)
        assert [one.result() for one in (first, *asked)] == [1, 2, 2, 2]
        for one in late:
            with pytest.raises(OSError, match="refused"):
                one.result()


def _threads_in(function: Any) -> int:
    """How many threads are within a call of it, this one left out."""
    found = 0
    for ident, top in sys._current_frames().items():
        frame: FrameType | None = top
        while frame and frame.f_code is not function.__code__:
            frame = frame.f_back
        found += frame is not None and ident != threading.get_ident()
    return found
