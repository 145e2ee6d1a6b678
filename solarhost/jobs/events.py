"""Payloads of the lifecycle events. solar-control reads these names and keys."""

from typing import Any

from solarhost.events import JobEvent
from solarhost.jobs.records import Job, Status


def job_started(job: Job, host_id: str | None) -> JobEvent:
    return _job_event("job_started", job, host_id, job.started_at, {"name": job.definition.name})


def job_ended(job: Job, workspace_path: str, host_id: str | None) -> JobEvent:
    """`job_completed`, `job_failed` or `job_cancelled`, as its status says."""
    facts: dict[str, Any] = {}
    if job.status is Status.COMPLETED and job.retention_deadline:
        facts = {"workspace_path": workspace_path, "retention_deadline": job.retention_deadline.isoformat()}
    if job.status is Status.FAILED:
        facts = {"error_message": job.error_message}
    return _job_event(f"job_{job.status}", job, host_id, job.finished_at, facts)


def step_started(job: Job, index: int, host_id: str | None) -> JobEvent:
    return _step_event("step_started", job, index, host_id, job.steps[index].started_at, {})


def step_ended(job: Job, index: int, host_id: str | None) -> JobEvent:
    """`step_completed` or `step_failed`."""
    step = job.steps[index]
    facts: dict[str, Any] = {"duration_s": step.duration_s, "exit_code": step.exit_code}
    if step.status is Status.FAILED:
        facts["error_summary"] = step.error_message
    return _step_event(f"step_{step.status}", job, index, host_id, step.finished_at, facts)


def _job_event(name: str, job: Job, host_id: str | None, at: str | None, facts: dict[str, Any]) -> JobEvent:
    payload = {"job_id": job.id, "host_id": host_id, "status": str(job.status), "timestamp": at, **facts}
    return JobEvent(name, payload)


def _step_event(
    name: str, job: Job, index: int, host_id: str | None, at: str | None, facts: dict[str, Any]
) -> JobEvent:
    step = job.steps[index]
    payload = {
        "job_id": job.id,
        "host_id": host_id,
        "step_name": step.name,
        "step_index": index,
        "status": str(step.status),
        "timestamp": at,
        **facts,
    }
    return JobEvent(name, payload)
