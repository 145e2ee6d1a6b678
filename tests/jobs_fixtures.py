"""Jobs on the real engine: a service, what it publishes, and short ways to define steps."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from solarhost.events import Delivered, Event, JobEvent, StepLogLines
from solarhost.jobs.definitions import JobDefinition, parse
from solarhost.jobs.records import Job
from solarhost.jobs.service import JobService
from solarhost.problems import Problems
from solarhost.settings import Settings
from tests.agent import wait_until
from tests.docker_engine import IMAGE, DockerEngine

ENDED_WITHIN_S = 60.0


def step(name: str, command: str | list[str] | None, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": IMAGE, "command": command, **more}


def shell(name: str, script: str, **more: Any) -> dict[str, Any]:
    return step(name, ["sh", "-c", script], **more)


def waiting(name: str, first: str = "echo up", **more: Any) -> dict[str, Any]:
    """A step that runs until it is told to end, and then obeys."""
    return shell(name, f"trap 'exit 0' TERM; {first}; sleep 600 & wait", **more)


def body(job_id: str, *steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"job_id": job_id, "name": f"job {job_id}", "steps": list(steps), **more}


def definition(job_id: str, *steps: dict[str, Any], **more: Any) -> JobDefinition:
    return parse(body(job_id, *steps, **more))


class Heard:
    """What was published, in order; a control that has everything at once."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.delivered: Delivered = lambda event: None

    def publish(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, JobEvent):
            self.delivered(event)

    def names(self, job_id: str) -> list[str]:
        """Lifecycle events of a job, a step's with its name."""
        return [
            f"{e.name} {e.payload['step_name']}" if "step_name" in e.payload else e.name
            for e in list(self.events)
            if isinstance(e, JobEvent) and e.payload.get("job_id") == job_id
        ]

    def entries(self, job_id: str, step_name: str | None = None) -> list[dict[str, Any]]:
        """Log entries of a job's steps, those that end them included."""
        return [
            entry
            for e in list(self.events)
            for entry in (
                e.entries if isinstance(e, StepLogLines) else getattr(e, "payload", {}).get("entries", ())
            )
            if entry["job_id"] == job_id and step_name in (None, entry["step_name"])
        ]


class Jobs:
    """A service on the real engine; `restart` is an agent's orderly end and its next start."""

    def __init__(self, folder: Path, engine: DockerEngine, **settings: Any):
        self.folder = folder
        self.engine = engine
        self.heard = Heard()
        self.problems = Problems()
        self.gpu_count: int | None = 0
        self._settings = Settings(
            jobs_dir=folder, docker_host=engine.address, **{"min_free_disk_gb": 0.0, **settings}
        )
        self.service = self._make()

    def _make(self) -> JobService:
        service = JobService(
            self._settings, self.heard.publish, self.problems, lambda: "host-1", lambda: self.gpu_count
        )
        self.heard.delivered = service.delivered
        return service

    def restart(self) -> None:
        self.close()
        self.service = self._make()
        self.service.start()

    def close(self) -> None:
        self.service.close(time.monotonic() + 10)

    def ended(self, job_id: str, timeout_s: float = ENDED_WITHIN_S) -> Job:
        """Wait for a job's end; its record."""
        wait_until(lambda: self.service.get(job_id).status.is_terminal, timeout_s, f"the end of {job_id}")
        wait_until(lambda: not job_threads(), timeout_s, "the threads of jobs to end")
        return self.service.get(job_id)

    def run(self, job_id: str, *steps: dict[str, Any], **more: Any) -> Job:
        self.service.submit(definition(job_id, *steps, **more))
        return self.ended(job_id)

    def log(self, job_id: str, step_name: str) -> str:
        return (self.folder / job_id / "logs" / f"{step_name}.log").read_text()


def job_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith(("job-", "steplog-"))]


@pytest.fixture
def make_jobs(tmp_path: Path, docker_engine: DockerEngine) -> Iterator[Any]:
    """Makes started services; keywords are settings. None may leave a thread or a container."""
    made: list[Jobs] = []

    def make(engine: DockerEngine = docker_engine, **settings: Any) -> Jobs:
        jobs = Jobs(tmp_path / f"jobs-{len(made)}", engine, **settings)
        jobs.service.start()
        made.append(jobs)
        return jobs

    yield make
    for jobs in made:
        jobs.close()
    assert job_threads() == []


@pytest.fixture
def jobs(make_jobs: Any, docker_engine: DockerEngine) -> Iterator[Jobs]:
    yield make_jobs()
    assert docker_engine.clear() == []
