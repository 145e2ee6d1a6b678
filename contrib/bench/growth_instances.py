"""How the agent grows with its instances: 1, 10, 50 and 200, first stopped, then running.

Those that run are stand-ins for `llama-server` that answer polls and do nothing else; only the agent's own
processes are measured. The records are stored as an earlier agent would have left them.
"""

import time
from collections.abc import Iterator, Mapping
from statistics import median

import psutil

from contrib.bench.agents import (
    agent_of_idle_servers,
    cpu_percent,
    get_ms,
    memory_mib,
    start_all,
    start_ms,
    timed_ms,
)
from contrib.bench.figures import SCALE, Figure, seconds, show
from contrib.bench.growth import IN_PROPORTION, Growth
from solarhost.instances.record import Record
from solarhost.instances.store import InstanceStore
from solarhost.problems import Problems
from solarhost.times import now_iso
from tests.agent import Agent

SIZES = (1, 10, 50, 200) if SCALE >= 1 else (1, 10, 50)
MIB_OF_A_SERVER = 12
CHANGED = 5
SETTLE_S = seconds(5.0)
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
    growth.curve("running_restart", "POST stop and start of one, all running", "ms", IN_PROPORTION)
    growth.curve("stop", "SIGTERM to the end of the agent, all running", "ms", IN_PROPORTION)
    growth.curve("running_memory", "memory, all running", "MiB", IN_PROPORTION)
    growth.curve("running_cpu", "processor, all running", "% of a core", IN_PROPORTION)
    try:
        _measure_stopped(growth)
        _measure_running(growth)
    finally:
        yield from growth.figures()


def _measure_stopped(growth: Growth) -> None:
    with agent_of_idle_servers() as (agent, config):
        stored = 0
        for size in SIZES:
            agent.stop()
            _store(agent, config, range(stored, size))
            stored = size
            growth.add(size, start=start_ms(agent))
            assert len(agent.get("/instances").json()) == size
            growth.add(size, list=get_ms(agent, "/instances"), get=get_ms(agent, f"/instances/{_id(0)}"))
            growth.add(size, memory=memory_mib(agent))
            growth.add(size, create=median(_create_ms(agent, config) for _ in range(CHANGED)))


def _measure_running(growth: Growth) -> None:
    with agent_of_idle_servers(STOP_TIMEOUT_S="60") as (agent, config):
        running = 0
        for size in SIZES:
            new = range(running, size)
            if psutil.virtual_memory().available < len(new) * MIB_OF_A_SERVER * 2**20:
                break
            if running == 0:
                agent.kill()
            _store(agent, config, new)
            running = size
            agent.start()
            start_all(agent, [_id(number) for number in range(size)])
            agent.kill()
            growth.add(size, adopt=start_ms(agent))
            adopted = [instance for instance in agent.get("/instances").json() if instance["adopted"]]
            assert len(adopted) == size, f"{len(adopted)} of {size} were adopted"
            growth.add(size, running_list=get_ms(agent, "/instances"))
            growth.add(size, running_restart=median(_restart_ms(agent) for _ in range(CHANGED)))
            time.sleep(SETTLE_S)
            growth.add(size, running_cpu=cpu_percent(agent, IDLE_S), running_memory=memory_mib(agent))
            growth.add(size, stop=timed_ms(agent.stop))


def _id(number: int) -> str:
    return f"instance-{number}"


def _store(agent: Agent, config: Mapping[str, str], numbers: range) -> None:
    store = InstanceStore(agent.folder / "config.json", Problems(), lambda given: given)
    store.load()
    with store.together():
        for number in numbers:
            alias = f"a-{number}"
            store.note(Record(id=_id(number), config={**config, "alias": alias}, created_at=now_iso()))


def _create_ms(agent: Agent, config: Mapping[str, str]) -> float:
    """One more, which is deleted again."""
    made: list[str] = []
    took_ms = timed_ms(lambda: made.append(agent.create({**config, "alias": "one-more"})))
    assert agent.request("DELETE", f"/instances/{made[0]}").status_code == 200
    return took_ms


def _restart_ms(agent: Agent) -> float:
    def restart() -> None:
        for verb in ("stop", "start"):
            answer = agent.post(f"/instances/{_id(0)}/{verb}")
            assert answer.status_code == 200, answer.text

    return timed_ms(restart)


if __name__ == "__main__":
    show(measure)
