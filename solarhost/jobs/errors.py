"""Errors of jobs that callers see, each with the facts of its answer."""

from typing import ClassVar

from solarhost.errors import Conflict, InvalidRequest, NotFound, StoreError, Unavailable


class InvalidJob(InvalidRequest):
    """A definition breaks a rule; nothing was kept of it."""

    status: ClassVar[int] = 400


class GpuUnavailable(InvalidRequest):
    """A step wants more, or other, GPUs than this host has."""

    status: ClassVar[int] = 400

    def __init__(self, step: str, requested: int | list[str], available_count: int):
        super().__init__(f"step {step} requests GPUs {requested}, this host has {available_count}")
        self.requested, self.available_count = requested, available_count

    def body(self) -> dict[str, object]:
        return {
            "detail": {
                "error": "gpu_unavailable",
                "reason": str(self),
                "requested": self.requested,
                "available_count": self.available_count,
            }
        }


class ExecutorUnavailable(Unavailable):
    """No job can be taken now: Docker is away, or the agent is about to end."""

    def body(self) -> dict[str, object]:
        return {"detail": {"error": "executor_unavailable", "reason": str(self)}}


class InsufficientStorage(StoreError):
    """The disk of `JOBS_DIR` has less room than a job must leave free."""

    status: ClassVar[int] = 507

    def __init__(self, required_gb: float, available_gb: float):
        super().__init__(f"{required_gb:g} GB must be free for jobs, {available_gb:g} GB are")
        self.required_gb, self.available_gb = required_gb, available_gb

    def body(self) -> dict[str, object]:
        return {
            "detail": {
                "error": "insufficient_storage",
                "required_gb": self.required_gb,
                "available_gb": self.available_gb,
            }
        }


class NoSuchJob(NotFound):
    def __init__(self, job_id: str):
        super().__init__(f"job {job_id} not found")


class NoSuchStep(NotFound):
    def __init__(self, job_id: str, step_name: str):
        super().__init__(f"job {job_id} has no step {step_name}")


class JobExists(Conflict):
    """The id is taken, by a job or by a folder that is not one's workspace."""


class JobEnded(Conflict):
    """It can't be cancelled any more."""

    def __init__(self, job_id: str, status: str):
        super().__init__(f"job {job_id} is already {status}")


class StillEnding(Unavailable):
    """A cancelled job has not ended yet; it goes on ending."""
