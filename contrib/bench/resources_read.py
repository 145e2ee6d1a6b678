"""`GET /resources` under 32 connections that ask as fast as they can: p99 at most 20 ms.

`GET /` is asked in the same way, before and after, to tell what the machine can do at that moment.
"""

import json
from collections.abc import Iterator

from contrib.bench.agents import running_agent
from contrib.bench.figures import Figure, seconds, show
from contrib.bench.wrk import load

CONNECTIONS = 32
SECONDS = seconds(8)
GPUS = [{"index": index, "name": "GPU", "total_gb": 80.0, "used_gb": 1.0} for index in range(8)]
RESERVATIONS = 20


def measure() -> Iterator[Figure]:
    with running_agent(GPU_TELEMETRY_OVERRIDE=json.dumps(GPUS)) as agent:
        for number in range(RESERVATIONS):
            body = {"job_id": f"job-{number}", "vram_gb": 1, "ram_gb": 0}
            assert agent.post("/resources/reservations", json=body).status_code == 201
        before, asked, after = (
            load(agent.url + path, {"X-API-Key": agent.key}, CONNECTIONS, SECONDS)
            for path in ("/", "/resources", "/")
        )
    other_ms = (before.p99_ms + after.p99_ms) / 2
    yield Figure(
        name="resources_p99",
        value=asked.p99_ms,
        unit="ms",
        at_most=20,
        note=f"{asked.rate:.0f} requests/s over {CONNECTIONS} connections; GET / in the same run "
        f"{other_ms:.1f} ms; the client runs on the same cores",
    )


if __name__ == "__main__":
    show(measure)
