"""Agents to measure, each in a folder of its own."""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.agent import Agent

IDLE_SERVER = Path(__file__).with_name("idle_server.py")


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


def idle_server(folder: Path, before: str = "") -> Path:
    """An executable stand-in for `llama-server` that is ready at once and then does nothing.

    Args:
        before: a line of shell that is run first.
    """
    path = folder / "llama-server"
    path.write_text(f'#!/bin/sh\n{before}\nexec {sys.executable} -S -E {IDLE_SERVER} "$@"\n')
    path.chmod(0o755)
    return path


def model_file(folder: Path) -> Path:
    """What such a server is content with."""
    path = folder / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


def memory_mib(agent: Agent) -> float:
    """Of the agent's own processes together, shared pages in shares."""
    return float(sum(process.memory_full_info().pss for process in agent.own_processes())) / 2**20


def cpu_percent(agent: Agent, span_s: float) -> float:
    """Of one core, that the agent's own processes use from now on for so long."""
    processes = agent.own_processes()
    before = sum(sum(process.cpu_times()[:2]) for process in processes)
    time.sleep(span_s)
    return 100 * (sum(sum(process.cpu_times()[:2]) for process in processes) - before) / span_s


def start_ms(agent: Agent) -> float:
    """From the agent's spawn to its first answer, give or take a poll of 20 ms."""
    return timed_ms(agent.start)


def get_ms(agent: Agent, path: str, rounds: int = 15) -> float:
    """The median of so many GET requests over one connection, as a client sees it."""

    def ask() -> None:
        answer = agent.get(path)
        assert answer.status_code == 200, answer.text

    return statistics.median(timed_ms(ask) for _ in range(rounds))


def timed_ms(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return 1000 * (time.monotonic() - began)
