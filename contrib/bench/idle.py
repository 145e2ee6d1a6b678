"""What an agent with fifty idle instances costs: at most 1% of a core, and 120 MB.

The instances are stand-ins that answer the agent's polls and do nothing else; only the agent's own
processes are measured.
"""

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from contrib.bench.agents import cpu_percent, idle_server, memory_mib, model_file, running_agent
from contrib.bench.figures import Figure, seconds, show

INSTANCES = 50
SETTLE_S = seconds(10.0)
MEASURED_S = seconds(30.0)


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running_agent(LLAMA_SERVER_PATH=str(idle_server(folder)), STOP_TIMEOUT_S="60") as agent:
            config = {"model": str(model_file(folder)), "host": "127.0.0.1"}
            ids = [agent.create({**config, "alias": f"idle-{number}"}) for number in range(INSTANCES)]
            with ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(lambda id_: agent.post(f"/instances/{id_}/start"), ids))
            assert all(answer.status_code == 200 for answer in answers), answers
            time.sleep(SETTLE_S)
            percent = cpu_percent(agent, MEASURED_S)
            mib = memory_mib(agent)
    of = f"all processes of the agent together, {INSTANCES} instances"
    yield Figure(name="idle_cpu", value=percent, unit="% of a core", at_most=1, note=of)
    yield Figure(name="idle_memory", value=mib, unit="MiB", at_most=120, note=of)


if __name__ == "__main__":
    show(measure)
