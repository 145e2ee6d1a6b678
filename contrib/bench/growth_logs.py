"""How reading grows with the log file of one instance, 1 MB to 10 GB.

The file is real, written once from end to end. The place up to which an earlier agent had read it is set by
hand; to read what really is new takes as long as `log_intake` says. 10 GB take part where the disk has room
for twice as much.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from websocket import create_connection

from contrib.bench.agents import (
    get_ms,
    idle_server,
    memory_mib,
    model_file,
    running_agent,
    start_ms,
    timed_ms,
)
from contrib.bench.figures import SCALE, Figure, show
from contrib.bench.growth import Growth
from contrib.bench.log_intake import LINE
from solarhost.files import read_json, write_json
from solarhost.logs.ledger import SUFFIX
from tests.agent import Agent

MB = 1_000_000
SIZES_MB = (1, 10, 100, 1000, 10_000) if SCALE >= 1 else (1, 10, 100)
FLAT = 0.2
OPENED = 5
TAIL = 100
BLOCK = (LINE + "\n").encode() * 10_000


def measure() -> Iterator[Figure]:
    growth = Growth("growth_logs")
    growth.curve("adopt", "start of the agent, instance running", "ms", FLAT)
    growth.curve("tail", f"GET logs?tail={TAIL}, running", "ms", FLAT)
    growth.curve("first_line", "first line of a stream", "ms", FLAT)
    growth.curve("stop", "POST stop", "ms", FLAT)
    growth.curve("tail_file", f"GET logs?tail={TAIL}, stopped before", "ms", FLAT)
    growth.curve("memory", "memory", "MiB", FLAT)
    with tempfile.TemporaryDirectory(prefix="solarhost-bench-") as name:
        folder = Path(name)
        server = idle_server(folder, before="echo up")
        with running_agent(LLAMA_SERVER_PATH=str(server), LOG_FILE_MAX_MB="100000") as agent:
            config = {"model": str(model_file(folder)), "alias": "lines", "host": "127.0.0.1"}
            instance_id = agent.create(config)
            try:
                for size in SIZES_MB:
                    if shutil.disk_usage(folder).free > 2 * size * MB:
                        _measure(growth, agent, instance_id, size)
            finally:
                yield from growth.figures()


def _measure(growth: Growth, agent: Agent, instance_id: str, size: int) -> None:
    logs = f"/instances/{instance_id}/logs?tail={TAIL}"
    assert agent.post(f"/instances/{instance_id}/start").status_code == 200
    agent.kill()
    _grow(agent, instance_id, size * MB)
    growth.add(size, adopt=start_ms(agent))
    assert agent.instance(instance_id)["adopted"]
    growth.add(size, tail=get_ms(agent, logs))
    growth.add(size, first_line=median(_first_ms(agent, instance_id) for _ in range(OPENED)))
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
    with path.open("ab") as file:
        while file.tell() < size:
            file.write(BLOCK)
        os.fsync(file.fileno())  # or the writing would be measured along
        place["offset"] = file.tell()
    place["seq"] = place["offset"] // len(LINE + "\n")
    write_json(ledger, place)


def _first_ms(agent: Agent, instance_id: str) -> float:
    url = f"ws://127.0.0.1:{agent.port}/instances/{instance_id}/logs?tail=1"

    def open_and_read() -> None:
        stream = create_connection(url, header={"X-API-Key": agent.key}, timeout=30)
        assert stream.recv()
        stream.close()

    return timed_ms(open_and_read)


if __name__ == "__main__":
    show(measure)
