"""`GET /resources` under 32 connections that ask as fast as they can: p99 at most 20 ms.

`GET /` is asked in the same way, before and after, to tell what the machine can do at that moment.
"""

import json
import re
import subprocess

from contrib.bench.agents import running_agent
from tests.agent import Agent

CONNECTIONS = 32
SECONDS = 8
GPUS = [{"index": index, "name": "GPU", "total_gb": 80.0, "used_gb": 1.0} for index in range(8)]
RESERVATIONS = 20


def main() -> None:
    with running_agent(GPU_TELEMETRY_OVERRIDE=json.dumps(GPUS)) as agent:
        for number in range(RESERVATIONS):
            body = {"job_id": f"job-{number}", "vram_gb": 1, "ram_gb": 0}
            assert agent.post("/resources/reservations", json=body).status_code == 201
        before_ms, _ = _p99_ms(agent, "/")
        p99_ms, rate = _p99_ms(agent, "/resources")
        after_ms, _ = _p99_ms(agent, "/")
    other_ms = (before_ms + after_ms) / 2
    print(
        f"resources_p99_ms {p99_ms:.1f} (limit 20): {rate:.0f} requests/s over {CONNECTIONS} connections; "
        f"GET / in the same run {other_ms:.1f} ms, ratio {p99_ms / other_ms:.2f}"
    )


def _p99_ms(agent: Agent, path: str) -> tuple[float, float]:
    """Latency and requests a second."""
    command = ["wrk", f"-c{CONNECTIONS}", "-t1", f"-d{SECONDS}", "--latency", "-H", f"X-API-Key: {agent.key}"]
    output = subprocess.run([*command, agent.url + path], check=True, capture_output=True, text=True).stdout
    found = re.search(r"99%\s+([\d.]+)(us|ms|s)", output)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", output)
    assert found and rate and "Non-2xx" not in output, output
    return float(found[1]) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[found[2]], float(rate[1])


if __name__ == "__main__":
    main()
