"""What an agent with fifty idle instances costs: at most 1% of a core, and 120 MB.

The instances are stand-ins that answer the agent's polls and do nothing else; only the agent's own
processes are measured.
"""

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from contrib.bench.agents import idle_server, running_agent

INSTANCES = 50
SETTLE_S = 10.0
MEASURED_S = 30.0


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "model.gguf"
        model.write_bytes(b"GGUF")
        with running_agent(LLAMA_SERVER_PATH=str(idle_server(folder)), STOP_TIMEOUT_S="60") as agent:
            config = {"model": str(model), "host": "127.0.0.1"}
            ids = [agent.create({**config, "alias": f"idle-{number}"}) for number in range(INSTANCES)]
            with ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(lambda id_: agent.post(f"/instances/{id_}/start"), ids))
            assert all(answer.status_code == 200 for answer in answers), answers
            time.sleep(SETTLE_S)
            processes = agent.own_processes()
            before = _cpu_s(processes)
            time.sleep(MEASURED_S)
            percent = 100 * (_cpu_s(processes) - before) / MEASURED_S
            mib = sum(process.memory_full_info().pss for process in processes) / 2**20
            print(f"idle_cpu_percent {percent:.2f} (limit 1.00) with {INSTANCES} instances")
            print(f"idle_memory_mb {mib:.0f} (limit 120), all processes of the agent together")


def _cpu_s(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


if __name__ == "__main__":
    main()
