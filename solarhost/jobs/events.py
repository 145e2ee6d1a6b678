"""Payloads of the lifecycle events. solar-control reads these names and keys."""

from typing import Any

from solarhost.events import JobEvent
from solarhost.jobs.records import Job, Status, Step


def events_of(job: Job, workspace_path: str, host_id: str | None, *, after: int) -> list[JobEvent]:
    """What has happened to a job, oldest first, beyond the first `after` events.

    It follows from the record alone, so it is the same whenever it is asked for.
    """
    events = []
    for number, (name, index) in enumerate(job.happened[after:], after + 1):
        facts = _job_facts(job, name, workspace_path) if index is None else _step_facts(job, name, index)
        payload = facts if name == "step_log" else {"job_id": job.id, "host_id": host_id, **facts}
        events.append(JobEvent(name, payload, job.uid, number))
    return events


def _job_facts(job: Job, name: str, workspace_path: str) -> dict[str, Any]:
    if name == "job_started":
        return {"status": str(Status.RUNNING), "timestamp": job.started_at, "name": job.definition.name}
    facts: dict[str, Any] = {"status": str(job.status), "timestamp": job.finished_at}
    if job.status is Status.COMPLETED and job.retention_deadline:
        facts |= {"workspace_path": workspace_path, "retention_deadline": job.retention_deadline.isoformat()}
    if job.status is Status.FAILED:
        facts |= {"error_message": job.error_message}
    return facts


def _step_facts(job: Job, name: str, index: int) -> dict[str, Any]:
    step = job.steps[index]
    facts: dict[str, Any] = {"step_name": step.name, "step_index": index}
    if name == "step_log":
        return {"entries": [{"job_id": job.id, **facts, **_log_end(step)}]}
    if name == "step_started":
        return facts | {"status": str(Status.RUNNING), "timestamp": step.started_at}
    facts |= {"status": str(step.status), "timestamp": step.finished_at}
    facts |= {"duration_s": step.duration_s, "exit_code": step.exit_code}
    if step.status is Status.FAILED:
        facts |= {"error_summary": step.error_message}
    return facts


def _log_end(step: Step) -> dict[str, Any]:
    """The entry that says that the log of a step is over."""
    return {
        "stream": "stdout",
        "seq": step.log_end,
        "timestamp": step.finished_at,
        "line": "",
        "completed": True,
        "exit_code": step.exit_code,
    }
