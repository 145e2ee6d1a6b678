"""What an agent with fifty idle instances costs: at most 1% of a core, and 120 MB.

The instances are stand-ins that answer the agent's polls and do nothing else; only the agent's own
processes are measured.
"""

import time
from collections.abc import Iterator

from contrib.bench.agents import agent_of_idle_servers, cpu_percent, memory_mib, start_all
from contrib.bench.figures import Figure, seconds, show

INSTANCES = 50
SETTLE_S = seconds(10.0)
MEASURED_S = seconds(30.0)


def measure() -> Iterator[Figure]:
    with agent_of_idle_servers(STOP_TIMEOUT_S="60") as (agent, config):
        start_all(agent, [agent.create({**config, "alias": f"idle-{number}"}) for number in range(INSTANCES)])
        time.sleep(SETTLE_S)
        percent = cpu_percent(agent, MEASURED_S)
        mib = memory_mib(agent)
    of = f"all processes of the agent together, {INSTANCES} instances"
    yield Figure(name="idle_cpu", value=percent, unit="% of a core", at_most=1, note=of)
    yield Figure(name="idle_memory", value=mib, unit="MiB", at_most=120, note=of)


if __name__ == "__main__":
    show(measure)
