"""How the agent grows with open log streams of one instance that prints a hundred lines a second."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from websocket import WebSocket, create_connection

from contrib.bench.agents import (
    cpu_percent,
    get_ms,
    idle_server,
    memory_mib,
    model_file,
    running_agent,
    timed_ms,
)
from contrib.bench.control_link import NOISY_LINES
from contrib.bench.figures import Figure, seconds, show
from contrib.bench.growth import IN_PROPORTION, Growth
from tests.agent import Agent

SIZES = (1, 10, 30, 100)
LINES_PER_S = 100
OPENED = 5
MEASURED_S = seconds(8.0)
ROOM = {"THREADS": "160", "MAX_STREAMS": "140"}  # each stream takes a thread


def measure() -> Iterator[Figure]:
    growth = Growth("growth_streams")
    growth.curve("first_line", "first line of one more", "ms", 0.5)
    growth.curve("get", "GET of the instance", "ms", 0.5)
    growth.curve("cpu", "processor", "% of a core", IN_PROPORTION)
    growth.curve("memory", "memory", "MiB", 0.5)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        server = idle_server(folder, before=f"{sys.executable} -S -E {NOISY_LINES} {LINES_PER_S} &")
        agent = stack.enter_context(running_agent(LLAMA_SERVER_PATH=str(server), **ROOM))
        config = {"model": str(model_file(folder)), "alias": "lines", "host": "127.0.0.1"}
        instance_id = agent.create(config)
        assert agent.post(f"/instances/{instance_id}/start").status_code == 200
        opened = 0
        try:
            for size in SIZES:
                for _ in range(size - opened):
                    stack.callback(_open(agent, instance_id).shutdown)
                opened = size
                growth.add(size, first_line=median(_first_ms(agent, instance_id) for _ in range(OPENED)))
                growth.add(size, get=get_ms(agent, f"/instances/{instance_id}"))
                growth.add(size, cpu=cpu_percent(agent, MEASURED_S), memory=memory_mib(agent))
        finally:
            yield from growth.figures()


def _open(agent: Agent, instance_id: str) -> WebSocket:
    url = f"ws://127.0.0.1:{agent.port}/instances/{instance_id}/logs?tail=1"
    return create_connection(url, header={"X-API-Key": agent.key}, timeout=30)


def _first_ms(agent: Agent, instance_id: str) -> float:
    streams: list[WebSocket] = []

    def open_and_read() -> None:
        streams.append(_open(agent, instance_id))
        assert streams[0].recv()

    took_ms = timed_ms(open_and_read)
    streams[0].close()
    return took_ms


if __name__ == "__main__":
    show(measure)
