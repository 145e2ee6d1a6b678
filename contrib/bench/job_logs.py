"""A step that prints half a million lines, against `docker logs --follow > file` of the same container.

Needs root and Docker's programs, as the tests of jobs do; `[ROUNDS]` pairs are measured in turn.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.docker_engine import IMAGE, DockerEngine, make_engine
from tests.jobs_fixtures import Jobs, step

LINES = 500_000
LIMIT = 1.3


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    for engine in make_engine(live_restore=True):
        with tempfile.TemporaryDirectory() as folder:
            jobs = Jobs(Path(folder) / "jobs", engine)
            jobs.service.start()
            pairs = [
                (_docker(engine, Path(folder) / f"{number}.log"), _job(jobs, f"job-{number}"))
                for number in range(rounds)
            ]
            jobs.close()
    ratio = statistics.median(job_s / docker_s for docker_s, job_s in pairs)
    shown = ", ".join(f"{job_s:.1f} s against {docker_s:.1f} s" for docker_s, job_s in pairs)
    print(f"job_log_slowdown {ratio:.2f} (limit {LIMIT}): {LINES} lines, {shown}")


def _docker(engine: DockerEngine, path: Path) -> float:
    """Seconds from the container's creation until its last line is in a file."""
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
    _check(path)
    engine.clear()
    return took_s


def _job(jobs: Jobs, job_id: str) -> float:
    """Seconds from the step's start, its container's creation, until its last line is in the file."""
    jobs.run(job_id, step("prints", f"seq {LINES}"))
    _check(jobs.folder / job_id / "logs" / "prints.log")
    jobs.heard.events.clear()
    took_s = jobs.service.get(job_id).steps[0].duration_s
    assert took_s is not None
    return took_s


def _check(path: Path) -> None:
    expected = "".join(f"{number}\n" for number in range(1, LINES + 1))
    assert path.read_text() == expected, f"{path} lacks lines"


if __name__ == "__main__":
    main()
