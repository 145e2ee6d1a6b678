"""Agents to measure, each in a folder of its own."""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from websocket import WebSocket, create_connection

from tests.agent import Agent

IDLE_SERVER = Path(__file__).with_name("idle_server.py")
NOISY_LINES = Path(__file__).with_name("noisy_lines.py")
FEWEST, MOST, ENOUGH_S = 5, 50, 1.0  # calls of which the median is taken; no more begin after so long
STARTS, STREAMS = 3, 9
TICK_S = 0.01  # the kernel counts processor time in these


@contextmanager
def running_agent(**settings: str) -> Iterator[Agent]:
    """A started agent; it and all that it started are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="solarhost-bench-") as name:
        agent = Agent(Path(name), settings)
        try:
            agent.start()
            yield agent
        finally:
            agent.end()


@contextmanager
def agent_of_idle_servers(before: str = "", **settings: str) -> Iterator[tuple[Agent, dict[str, str]]]:
    """Such an agent whose instances are stand-ins, and a config for them that lacks an alias."""
    with tempfile.TemporaryDirectory(prefix="solarhost-bench-") as name:
        folder = Path(name)
        model = folder / "model.gguf"
        model.write_bytes(b"GGUF")
        with running_agent(LLAMA_SERVER_PATH=str(idle_server(folder, before)), **settings) as agent:
            yield agent, {"backend_type": "llamacpp", "model": str(model), "host": "127.0.0.1"}


def idle_server(folder: Path, before: str = "") -> Path:
    """An executable stand-in for `llama-server` that is ready at once and then does nothing.

    Args:
        before: a line of shell that is run first.
    """
    path = folder / "llama-server"
    path.write_text(f'#!/bin/sh\n{before}\nexec {sys.executable} -S -E {IDLE_SERVER} "$@"\n')
    path.chmod(0o755)
    return path


def prints_lines(each_second: int) -> str:
    """A line of shell that lets a stand-in print so many log lines."""
    return f"{sys.executable} -S -E {NOISY_LINES} {each_second} &"


def start_all(agent: Agent, instance_ids: Sequence[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda id_: agent.post(f"/instances/{id_}/start"), instance_ids))
    failed = [answer.text for answer in answers if answer.status_code != 200]
    assert not failed, failed


def open_log_stream(agent: Agent, instance_id: str) -> WebSocket:
    """The newest line, then all that come."""
    url = f"ws://127.0.0.1:{agent.port}/instances/{instance_id}/logs?tail=1"
    return create_connection(url, header={"X-API-Key": agent.key}, timeout=30)


def first_line_ms(agent: Agent, instance_id: str) -> float:
    """From the wish for such a stream to its first line, the median of some, one at a time."""
    took_ms = []
    for _ in range(STREAMS):
        began = time.monotonic()
        stream = open_log_stream(agent, instance_id)
        assert stream.recv()
        took_ms.append(1000 * (time.monotonic() - began))
        stream.close()
    return statistics.median(took_ms)


def memory_mib(agent: Agent) -> float:
    """Of the agent's own processes together, shared pages in shares."""
    return float(sum(process.memory_full_info().pss for process in agent.own_processes())) / 2**20


def cpu_percent(agent: Agent, span_s: float) -> float:
    """Of one core, that the agent's own processes use from now on for so long; a tick at least."""
    before_s = _cpu_s(agent)
    time.sleep(span_s)
    return 100 * max(TICK_S, _cpu_s(agent) - before_s) / span_s


def _cpu_s(agent: Agent) -> float:
    return float(sum(sum(process.cpu_times()[:2]) for process in agent.own_processes()))


def start_ms(agent: Agent) -> float:
    """From the spawn of an agent that ended to its first answer, give or take a poll of 20 ms.

    The quickest of some, with a kill between them: a program's start is what a busy machine delays most.
    """
    took_ms = [timed_ms(agent.start)]
    for _ in range(STARTS - 1):
        agent.kill()
        took_ms.append(timed_ms(agent.start))
    return min(took_ms)


def get_ms(agent: Agent, path: str) -> float:
    """Of a GET over a connection that is open, as a client sees it."""

    def ask() -> None:
        answer = agent.get(path)
        assert answer.status_code == 200, answer.text

    return median_ms(ask)


def median_ms(work: Callable[[], object]) -> float:
    """Of as many runs as a second allows, within bounds."""
    deadline = time.monotonic() + ENOUGH_S
    took_ms: list[float] = []
    while len(took_ms) < FEWEST or (len(took_ms) < MOST and time.monotonic() < deadline):
        took_ms.append(timed_ms(work))
    return statistics.median(took_ms)


def timed_ms(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return 1000 * (time.monotonic() - began)
