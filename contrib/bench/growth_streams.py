"""How the agent grows with open log streams of one instance that prints a hundred lines a second."""

from collections.abc import Iterator
from contextlib import ExitStack

from contrib.bench.agents import (
    agent_of_idle_servers,
    cpu_percent,
    first_line_ms,
    get_ms,
    memory_mib,
    open_log_stream,
    prints_lines,
    start_all,
)
from contrib.bench.figures import Figure, seconds, show
from contrib.bench.growth import IN_PROPORTION, Growth

SIZES = (1, 10, 30, 100)
LINES_PER_S = 100
MEASURED_S = seconds(8.0)
ROOM = {"THREADS": "160", "MAX_STREAMS": "140"}  # each stream takes a thread


def measure() -> Iterator[Figure]:
    growth = Growth("growth_streams")
    growth.curve("first_line", "first line of one more", "ms", 0.5)
    growth.curve("get", "GET of the instance", "ms", 0.5)
    growth.curve("cpu", "processor", "% of a core", IN_PROPORTION)
    growth.curve("memory", "memory", "MiB", 0.5)
    with ExitStack() as stack:
        agent, config = stack.enter_context(agent_of_idle_servers(prints_lines(LINES_PER_S), **ROOM))
        instance_id = agent.create({**config, "alias": "lines"})
        start_all(agent, [instance_id])
        opened = 0
        try:
            for size in SIZES:
                for _ in range(size - opened):
                    stack.callback(open_log_stream(agent, instance_id).shutdown)
                opened = size
                growth.add(size, first_line=first_line_ms(agent, instance_id))
                growth.add(size, get=get_ms(agent, f"/instances/{instance_id}"))
                growth.add(size, cpu=cpu_percent(agent, MEASURED_S), memory=memory_mib(agent))
        finally:
            yield from growth.figures()


if __name__ == "__main__":
    show(measure)
