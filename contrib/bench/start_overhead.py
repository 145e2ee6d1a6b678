"""What `POST /instances/{id}/start` adds to the server's own time to ready: at most 150 ms.

The same command is run by hand and through the agent, in turns, so that both see the same machine.
"""

import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import requests

from contrib.bench.agents import running_agent
from contrib.bench.figures import Figure, show, times
from contrib.setup.llama_server import ensure_llama_server
from contrib.setup.models import ensure_gguf
from solarhost.backends.base import HEALTH_PATH, Launch
from solarhost.backends.llamacpp import LlamaCpp
from tests.agent import Agent, free_port

PAIRS = times(9)


def measure() -> Iterator[Figure]:
    server = ensure_llama_server()
    config = {"model": str(ensure_gguf()), "alias": "a", "host": "127.0.0.1", "ctx_size": 2048, "threads": 2}
    with running_agent(LLAMA_SERVER_PATH=str(server)) as agent:
        instance_id = agent.create(config)
        _through_the_agent(agent, instance_id)  # the first one reads the model from disk
        pairs = [(_by_hand(server, config), _through_the_agent(agent, instance_id)) for _ in range(PAIRS)]
    alone = statistics.median(pair[0] for pair in pairs)
    through = statistics.median(pair[1] for pair in pairs)
    yield Figure(
        name="start_overhead",
        value=statistics.median(pair[1] - pair[0] for pair in pairs),
        unit="ms",
        at_most=150,
        note=f"POST start {through:.0f} ms, llama-server by hand {alone:.0f} ms, medians of {PAIRS} in turns",
    )


def _by_hand(server: Path, config: dict[str, object]) -> float:
    """Milliseconds from the spawn to the first 200 of /health."""
    backend = LlamaCpp(str(server))
    port = free_port()
    command = backend.command(backend.schema().load(config), Launch(port, ("k",), None))
    with tempfile.TemporaryFile() as output:
        started = time.monotonic()
        process = subprocess.Popen(command.argv, env=dict(command.environment), stdout=output, stderr=output)
        try:
            with requests.Session() as session:
                while not _is_ready(session, f"http://127.0.0.1:{port}{HEALTH_PATH}"):
                    time.sleep(0.002)
            return 1000 * (time.monotonic() - started)
        finally:
            process.terminate()
            process.wait()


def _through_the_agent(agent: Agent, instance_id: str) -> float:
    """Milliseconds that the start took to answer."""
    started = time.monotonic()
    answer = agent.post(f"/instances/{instance_id}/start")
    took_ms = 1000 * (time.monotonic() - started)
    assert answer.status_code == 200, answer.text
    assert agent.post(f"/instances/{instance_id}/stop").status_code == 200
    return took_ms


def _is_ready(session: requests.Session, url: str) -> bool:
    try:
        return session.get(url, timeout=5).status_code == 200
    except requests.RequestException:
        return False


if __name__ == "__main__":
    show(measure)
