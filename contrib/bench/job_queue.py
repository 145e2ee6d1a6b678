"""A hundred jobs of three steps at once: do all end, in order, with nothing left?

Needs root and Docker's programs, as the tests of jobs do; set against as many bare `docker run` in as many
lanes as the host has for jobs.
"""

import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from contrib.bench.figures import Figure, show, times
from solarhost.jobs.records import Status
from tests.docker_engine import IMAGE, DockerEngine, make_engine
from tests.jobs_fixtures import Jobs, definition, step

JOBS = times(100)
LANES = 4
STEPS = ("fetch", "train", "check")
ORDER = [
    "job_started",
    *(f"step_{what} {s}" for s in STEPS for what in ("started", "completed")),
    "job_completed",
]


def measure() -> Iterator[Figure]:
    for engine in make_engine(live_restore=True):
        bare_s = _bare(engine)
        with tempfile.TemporaryDirectory() as folder:
            jobs = Jobs(Path(folder) / "jobs", engine, max_jobs=LANES)
            jobs.service.start()
            threads = threading.active_count()
            began = time.monotonic()
            for number in range(JOBS):
                steps = (step(name, f"echo {name}") for name in STEPS)
                jobs.service.submit(definition(f"job-{number}", *steps))
            most = 0
            while any(not job.status.is_terminal for job in jobs.service.list()):
                most = max(most, sum(job.status is Status.RUNNING for job in jobs.service.list()))
                time.sleep(0.1)
            took_s = time.monotonic() - began
            time.sleep(1.0)  # the last thread's own end
            left = threading.active_count() - threads
            failed = sum(job.status is not Status.COMPLETED for job in jobs.service.list())
            disordered = sum(jobs.heard.names(f"job-{number}") != ORDER for number in range(JOBS))
            jobs.close()
        containers = len(engine.containers())
    of = f"{JOBS} jobs of {len(STEPS)} steps"
    yield Figure(
        name="job_queue",
        value=took_s / bare_s,
        unit="of as many docker run",
        note=f"{of} in {took_s:.0f} s, bare {bare_s:.0f} s",
    )
    yield Figure(name="job_queue_failed", value=failed, unit="jobs", at_most=0, note=of)
    yield Figure(name="job_queue_disordered", value=disordered, unit="jobs", at_most=0, note=of)
    yield Figure(name="job_queue_threads", value=left, unit="left", at_most=0, note=of)
    yield Figure(name="job_queue_containers", value=containers, unit="left", at_most=0, note=of)
    yield Figure(name="job_queue_at_once", value=most, unit="jobs", at_most=LANES, note=of)


def _bare(engine: DockerEngine) -> float:
    """Seconds for as many containers, run and removed without us."""
    words = ["docker", f"--host={engine.address}", "run", "--rm", IMAGE, "echo", "done"]

    def run(_: int) -> None:
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)

    began = time.monotonic()
    with ThreadPoolExecutor(LANES) as lanes:
        list(lanes.map(run, range(JOBS * len(STEPS))))
    return time.monotonic() - began


if __name__ == "__main__":
    show(measure)
