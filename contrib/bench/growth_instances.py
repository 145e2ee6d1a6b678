"""How the agent grows with its instances: 1, 10, 50 and 200, first stopped, then running.

Those that run are stand-ins for `llama-server` that answer polls and do nothing else; only the agent's own
processes are measured.
"""

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import psutil

from contrib.bench.agents import (
    cpu_percent,
    get_ms,
    idle_server,
    memory_mib,
    model_file,
    running_agent,
    start_ms,
    timed_ms,
)
from contrib.bench.figures import SCALE, Figure, seconds, show
from contrib.bench.growth import IN_PROPORTION, Growth
from tests.agent import Agent

SIZES = (1, 10, 50, 200) if SCALE >= 1 else (1, 10, 50)
MIB_OF_A_SERVER = 20
CREATED = 5
SETTLE_S = seconds(10.0)
IDLE_S = seconds(10.0)


def measure() -> Iterator[Figure]:
    growth = Growth("growth_instances")
    growth.curve("start", "start of the agent", "ms", IN_PROPORTION)
    growth.curve("list", "GET /instances", "ms", IN_PROPORTION)
    growth.curve("get", "GET of one", "ms", 0.3)
    growth.curve("create", "POST /instances", "ms", IN_PROPORTION)
    growth.curve("memory", "memory, all stopped", "MiB", IN_PROPORTION)
    growth.curve("adopt", "start of the agent, all running", "ms", IN_PROPORTION)
    growth.curve("running_list", "GET /instances, all running", "ms", IN_PROPORTION)
    growth.curve("running_memory", "memory, all running", "MiB", IN_PROPORTION)
    growth.curve("running_cpu", "processor, all running", "% of a core", IN_PROPORTION)
    try:
        for size in SIZES:
            _measure(growth, size)
    finally:
        yield from growth.figures()


def _measure(growth: Growth, size: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running_agent(LLAMA_SERVER_PATH=str(idle_server(folder)), STOP_TIMEOUT_S="60") as agent:
            config = {"model": str(model_file(folder)), "host": "127.0.0.1"}
            ids = [agent.create({**config, "alias": f"a-{number}"}) for number in range(size)]
            created_ms = median(_create_ms(agent, config) for _ in range(CREATED))
            agent.stop()
            growth.add(size, start=start_ms(agent), create=created_ms)
            growth.add(size, list=get_ms(agent, "/instances"), get=get_ms(agent, f"/instances/{ids[0]}"))
            growth.add(size, memory=memory_mib(agent))
            if psutil.virtual_memory().available > size * MIB_OF_A_SERVER * 2**20:
                _measure_running(growth, agent, ids)


def _create_ms(agent: Agent, config: dict[str, str]) -> float:
    """One more, which is deleted again."""
    made: list[str] = []
    took_ms = timed_ms(lambda: made.append(agent.create({**config, "alias": "one-more"})))
    assert agent.request("DELETE", f"/instances/{made[0]}").status_code == 200
    return took_ms


def _measure_running(growth: Growth, agent: Agent, ids: list[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda id_: agent.post(f"/instances/{id_}/start"), ids))
    assert all(answer.status_code == 200 for answer in answers), answers
    agent.kill()
    size = len(ids)
    growth.add(size, adopt=start_ms(agent))
    adopted = [instance for instance in agent.get("/instances").json() if instance["adopted"]]
    assert len(adopted) == size, f"{len(adopted)} of {size} were adopted"
    growth.add(size, running_list=get_ms(agent, "/instances"))
    time.sleep(SETTLE_S)
    growth.add(size, running_cpu=cpu_percent(agent, IDLE_S), running_memory=memory_mib(agent))


if __name__ == "__main__":
    show(measure)
