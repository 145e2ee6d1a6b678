"""How the agent grows with the jobs that it has on record, 1 to 1,000 of three steps, all ended."""

from collections.abc import Iterator
from dataclasses import replace

from contrib.bench.agents import get_ms, memory_mib, running_agent, start_ms
from contrib.bench.figures import Figure, show
from contrib.bench.growth import IN_PROPORTION, Growth
from solarhost.files import write_json
from solarhost.jobs.definitions import parse
from solarhost.jobs.records import Job, Status, Step
from solarhost.times import now_iso
from tests.agent import Agent

SIZES = (1, 10, 100, 1000)
STEPS = ("fetch", "train", "check")


def measure() -> Iterator[Figure]:
    growth = Growth("growth_jobs")
    growth.curve("start", "start of the agent", "ms", IN_PROPORTION)
    growth.curve("list", "GET /jobs", "ms", IN_PROPORTION)
    growth.curve("get", "GET of one", "ms", 0.3)
    growth.curve("memory", "memory", "MiB", IN_PROPORTION)
    with running_agent() as agent:
        stored = 0
        try:
            for size in SIZES:
                agent.stop()
                _store(agent, range(stored, size))
                stored = size
                growth.add(size, start=start_ms(agent))
                assert len(agent.get("/jobs").json()) == size
                growth.add(size, list=get_ms(agent, "/jobs"), get=get_ms(agent, "/jobs/job-0"))
                growth.add(size, memory=memory_mib(agent))
        finally:
            yield from growth.figures()


def _store(agent: Agent, numbers: range) -> None:
    """Records as an earlier agent would have left them."""
    for number in numbers:
        job = _ended_job(number)
        path = agent.folder / "jobs" / ".records" / f"{job.id}.json"
        write_json(path, job.as_json(), durable=False)


def _ended_job(number: int) -> Job:
    """All of its events have been told."""
    steps = [{"name": name, "image": "tools:1", "command": ["echo", name]} for name in STEPS]
    definition = parse({"job_id": f"job-{number}", "name": f"Job {number}", "steps": steps})
    now = now_iso()
    done = tuple(
        Step(name=name, status=Status.COMPLETED, exit_code=0, started_at=now, finished_at=now)
        for name in STEPS
    )
    job = Job(uid=f"{number:032x}", definition=definition, created_at=now, steps=done, started_at=now)
    ended = job.ended(Status.COMPLETED, now)
    return replace(ended, told=len(ended.happened))


if __name__ == "__main__":
    show(measure)
