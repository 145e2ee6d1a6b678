"""How reading grows with the log file of one instance, 1 MB to 10 GB.

The file is a hole but for the lines at its end, so it takes no room: whoever reads it from its beginning has
as much to read. The place up to which an earlier agent had read it is set by hand; to read what really is
new takes as long as `log_intake` says.
"""

import os
from collections.abc import Iterator

from contrib.bench.agents import (
    agent_of_idle_servers,
    first_line_ms,
    get_ms,
    memory_mib,
    start_all,
    start_ms,
    timed_ms,
)
from contrib.bench.figures import Figure, show
from contrib.bench.growth import Growth
from contrib.bench.log_intake import LINE
from solarhost.files import read_json, write_json
from solarhost.logs.ledger import SUFFIX
from tests.agent import Agent

MB = 1_000_000
SIZES_MB = (1, 10, 100, 1000, 10_000)
FLAT = 0.2
TAIL = 100
LINES = (LINE + "\n").encode() * 5_000


def measure() -> Iterator[Figure]:
    growth = Growth("growth_logs")
    growth.curve("adopt", "start of the agent, instance running", "ms", FLAT)
    growth.curve("tail", f"GET logs?tail={TAIL}, running", "ms", FLAT)
    growth.curve("first_line", "first line of a stream", "ms", FLAT)
    growth.curve("stop", "POST stop", "ms", FLAT)
    growth.curve("tail_file", f"GET logs?tail={TAIL}, stopped before", "ms", FLAT)
    growth.curve("memory", "memory", "MiB", FLAT)
    with agent_of_idle_servers("echo up", LOG_FILE_MAX_MB="100000") as (agent, config):
        instance_id = agent.create({**config, "alias": "lines"})
        try:
            for size in SIZES_MB:
                _measure(growth, agent, instance_id, size)
        finally:
            yield from growth.figures()


def _measure(growth: Growth, agent: Agent, instance_id: str, size: int) -> None:
    logs = f"/instances/{instance_id}/logs?tail={TAIL}"
    start_all(agent, [instance_id])
    agent.kill()
    _grow(agent, instance_id, size * MB)
    growth.add(size, adopt=start_ms(agent))
    assert agent.instance(instance_id)["adopted"]
    growth.add(size, tail=get_ms(agent, logs), first_line=first_line_ms(agent, instance_id))
    growth.add(size, memory=memory_mib(agent))
    growth.add(size, stop=timed_ms(lambda: agent.post(f"/instances/{instance_id}/stop")))
    agent.stop()
    agent.start()
    growth.add(size, tail_file=get_ms(agent, logs))
    assert len(agent.get(logs).json()) == TAIL


def _grow(agent: Agent, instance_id: str, size: int) -> None:
    """Its newest log file gets that size, all of it read by the earlier agent."""
    ledger = agent.folder / "logs" / f"{instance_id}{SUFFIX}"
    place = read_json(ledger)
    path = agent.folder / "logs" / place["file"]
    os.truncate(path, size - len(LINES))
    with path.open("ab") as file:
        file.write(LINES)
    write_json(ledger, {**place, "offset": size, "seq": size // len(LINE + "\n")})


if __name__ == "__main__":
    show(measure)
