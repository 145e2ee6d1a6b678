"""A step that prints half a million lines, against `docker logs --follow > file` of the same container.

Needs root and Docker's programs, as the tests of jobs do; the pairs are measured in turn.
"""

import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from contrib.bench.figures import Figure, show, times
from tests.docker_engine import IMAGE, DockerEngine, make_engine
from tests.jobs_fixtures import Jobs, step

LINES = 1000 * times(500)
ROUNDS = 3
TRIES = 5


def measure() -> Iterator[Figure]:
    for engine in make_engine(live_restore=True):
        with tempfile.TemporaryDirectory() as folder:
            jobs = Jobs(Path(folder) / "jobs", engine)
            jobs.service.start()
            pairs = [
                (_docker(engine, Path(folder) / f"{number}.log"), _job(jobs, f"job-{number}"))
                for number in range(ROUNDS)
            ]
            jobs.close()
    ratio = statistics.median(job_s / docker_s for docker_s, job_s in pairs)
    shown = ", ".join(f"{job_s:.1f} s against {docker_s:.1f} s" for docker_s, job_s in pairs)
    yield Figure(
        name="job_logs",
        value=ratio,
        unit="of docker logs into a file",
        at_most=1.3,
        note=f"{LINES} lines, {shown}",
    )


def _docker(engine: DockerEngine, path: Path) -> float:
    """Seconds from the container's creation until its last line is in a file.

    `docker logs --follow` may end before the last lines when the container does: then it is tried again.
    """
    for _ in range(TRIES):
        took_s = _docker_once(engine, path)
        if _is_whole(path):
            return took_s
    raise RuntimeError(f"docker logs left lines out {TRIES} times")


def _docker_once(engine: DockerEngine, path: Path) -> float:
    docker = ["docker", f"--host={engine.address}"]
    began = time.monotonic()
    subprocess.run(
        [*docker, "run", "-d", "--name=plain", IMAGE, "seq", str(LINES)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    with path.open("wb") as file:
        subprocess.run([*docker, "logs", "--follow", "plain"], check=True, stdout=file)
    took_s = time.monotonic() - began
    engine.clear()
    return took_s


def _job(jobs: Jobs, job_id: str) -> float:
    """Seconds from the step's start, its container's creation, until its last line is in the file."""
    jobs.run(job_id, step("prints", f"seq {LINES}"))
    assert _is_whole(jobs.folder / job_id / "logs" / "prints.log"), "the step's log lacks lines"
    jobs.heard.events.clear()
    took_s = jobs.service.get(job_id).steps[0].duration_s
    assert took_s is not None
    return took_s


def _is_whole(path: Path) -> bool:
    return path.read_text() == "".join(f"{number}\n" for number in range(1, LINES + 1))


if __name__ == "__main__":
    show(measure)
