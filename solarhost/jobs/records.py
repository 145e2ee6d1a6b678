"""What the host knows of a job. Frozen: whoever gets a record may keep it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self

from solarhost.jobs.definitions import JobDefinition, parse
from solarhost.shapes import check_fields


class Status(StrEnum):
    """Life of a job, and of each of its steps. Only the job's own thread writes it once it runs.

    pending --> running --> completed, failed, cancelled
       +------------------> cancelled
    """

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self not in (Status.PENDING, Status.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    name: str
    status: Status = Status.PENDING
    container_id: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    exit_code: int | None = None
    signal: int | None = None  # that ended it
    oom_killed: bool = False
    error_message: str | None = None
    log_end: int | None = None  # number of the entry after the last line of its log

    @property
    def duration_s(self) -> float | None:
        if self.started_at is None or self.finished_at is None:
            return None
        span = datetime.fromisoformat(self.finished_at) - datetime.fromisoformat(self.started_at)
        return round(span.total_seconds(), 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    uid: str  # of this submission: an id may be used again once its job is gone
    definition: JobDefinition
    created_at: str
    steps: tuple[Step, ...]
    status: Status = Status.PENDING
    cancel_requested: bool = False
    started_at: str | None = None
    finished_at: str | None = None
    error_message: str | None = None
    told: int = 0  # so many of its events has solar-control

    @property
    def id(self) -> str:
        return self.definition.job_id

    @property
    def current_step_index(self) -> int:
        """The step that runs, else the last that did."""
        begun = [index for index, step in enumerate(self.steps) if step.started_at is not None]
        return begun[-1] if begun else 0

    @property
    def retention_deadline(self) -> datetime | None:
        """When its workspace and record go; None until it has ended."""
        if self.finished_at is None:
            return None
        return datetime.fromisoformat(self.finished_at) + timedelta(hours=self.definition.retention_hours)

    @property
    def happened(self) -> list[tuple[str, int | None]]:
        """Its events so far: name, and index of the step if it is one's. Only grows, at its end."""
        events: list[tuple[str, int | None]] = []
        if self.started_at is not None:
            events.append(("job_started", None))
        for index, step in enumerate(self.steps):
            if step.started_at is not None:
                events.append(("step_started", index))
            if step.log_end is not None:
                events.append(("step_log", index))
            if step.status in (Status.COMPLETED, Status.FAILED):
                events.append((f"step_{step.status}", index))
        if self.status.is_terminal:
            events.append((f"job_{self.status}", None))
        return events

    @property
    def is_told(self) -> bool:
        """solar-control has all of its events."""
        return self.told >= len(self.happened)

    def with_step(self, index: int, **changes: Any) -> "Job":
        step = replace(self.steps[index], **changes)
        return replace(self, steps=(*self.steps[:index], step, *self.steps[index + 1 :]))

    def ended(self, status: Status, at: str, error_message: str | None = None) -> "Job":
        """Itself with its end; the steps that did not run become `cancelled`."""
        steps = tuple(
            step if step.status.is_terminal else replace(step, status=Status.CANCELLED) for step in self.steps
        )
        return replace(self, status=status, steps=steps, finished_at=at, error_message=error_message)

    def as_json(self) -> dict[str, Any]:
        """For the job's record file; `from_json` takes it back."""
        return {**asdict(self), "definition": self.definition.as_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Raises InvalidJob, KeyError, TypeError, ValueError, AttributeError: not by `as_json`."""
        job = cls(
            **{
                **data,
                "definition": parse(data["definition"]),
                "status": Status(data["status"]),
                "steps": tuple(Step(**{**step, "status": Status(step["status"])}) for step in data["steps"]),
            }
        )
        for part in (job, job.definition, *job.definition.steps, *job.steps):
            check_fields(part)
        if len(job.steps) != len(job.definition.steps):
            raise ValueError("it has other steps than its definition")
        times = [job.created_at, job.started_at, job.finished_at]
        times += [time for step in job.steps for time in (step.started_at, step.finished_at)]
        if any(time is not None and datetime.fromisoformat(time).tzinfo is None for time in times):
            raise ValueError("a time is without its zone")
        return job
