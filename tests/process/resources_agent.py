"""Runs `Resources` for a test that needs a process of its own: a command a line in, an answer a line out."""

import json
import logging
import sys
import time
from pathlib import Path
from threading import Event

from solarhost.backends.base import CannotStart
from solarhost.errors import SolarHostError
from solarhost.problems import Problems
from solarhost.resources.allocation import Need
from solarhost.resources.readings import GIB
from solarhost.resources.service import Ask, Resources
from solarhost.settings import Settings
from tests.resources_fakes import FakeJob


class Agent:
    def __init__(self, folder):
        self._jobs = {}
        self._problems = Problems()
        self._resources = Resources(
            Settings(models_dir=Path(folder), vram_release_timeout_s=3), self._problems, self._jobs.get
        )

    def start(self):
        self._resources.start()

    def close(self):
        self._resources.close(time.monotonic() + 1)

    def snapshot(self):
        return self._resources.snapshot()

    def problems(self):
        return self._problems.current()

    def memory(self):
        return self._resources.memory()

    def health_memory(self):
        return self._resources.health_memory()

    def kind(self):
        return [self._resources.gpu_type, self._resources.gpu_count()]

    def reserve(self, job_id="job", **need):
        sizes = {key: round(need.pop(key) * GIB) for key in ("vram", "ram", "disk") if key in need}
        return self._resources.reserve(Ask(job_id=job_id, need=Need(**sizes, **need)))

    def release(self, reservation_id):
        self._resources.release(reservation_id)

    def run_job(self, job_id, pids):
        self._jobs[job_id] = FakeJob(pids=tuple(pids))

    def admit(self, instance_id, gpu_ids=None, vram_gb=None):
        return self._resources.charges.admit(instance_id, gpu_ids, vram_gb, Event())

    def spawned(self, instance_id, pid):
        self._resources.charges.spawned(instance_id, pid)

    def adopt(self, instance_id, pid, vram_gb):
        self._resources.charges.adopt(instance_id, pid, None, vram_gb)

    def ended(self, instance_id):
        self._resources.charges.release(instance_id)


def main():
    logging.basicConfig(stream=sys.stderr)
    agent = Agent(sys.argv[1])
    agent.start()
    for line in sys.stdin:
        method, arguments = json.loads(line)
        try:
            answer = {"result": getattr(agent, method)(**arguments)}
        except (SolarHostError, CannotStart) as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(answer), flush=True)
    agent.close()


if __name__ == "__main__":
    main()
