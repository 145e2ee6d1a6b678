"""What the steps of jobs printed, whether they run or not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from solarhost.files import unread
from solarhost.jobs.errors import NoSuchJob, NoSuchStep
from solarhost.jobs.logfile import LogExtent, LogPart, StepLogCursor, read_tail
from solarhost.jobs.records import Job
from solarhost.jobs.run import JobRun
from solarhost.jobs.steplog import stored_extent, stored_recent
from solarhost.jobs.store import JobStore
from solarhost.jobs.workspace import Workspaces


class JobLogs:
    """Safe from any thread.

    Args:
        run_of: gives the run of a job, while it has one.
    """

    def __init__(self, store: JobStore, workspaces: Workspaces, run_of: Callable[[str], JobRun | None]):
        self._store = store
        self._workspaces = workspaces
        self._run_of = run_of

    def path(self, job: Job, index: int) -> Path:
        """Where the log of a step is, once it has begun."""
        return self._workspaces.log_file(job.id, job.steps[index].name)

    def recent(self, job: Job, index: int) -> list[dict[str, Any]]:
        """The last lines of a step: `{seq, stream, line, timestamp}`. Raises StoreError."""
        run = self._run_of(job.id)
        live = run.log(index) if run else None
        return stored_recent(self.path(job, index)) if live is None else live.recent()

    def read(self, job_id: str, step_name: str, *, tail: int, since: int) -> LogPart:
        """The last `tail` lines of a step's file, of those after number `since`.

        Raises:
            NoSuchJob, NoSuchStep.
            StoreError: it can't be read now.
        """
        job, index = self._find(job_id, step_name)
        path = self.path(job, index)
        try:
            return read_tail(path, self._extent(job, index), tail=tail, since=max(0, since))
        except FileNotFoundError:  # it has not begun
            return LogPart(1, [])
        except OSError as error:
            raise unread(path, error) from error

    def follow(self, job_id: str, step_name: str, *, since: int, tail: int | None) -> StepLogCursor:
        """A place in a step's file: after line `since`, or `tail` lines before its end, whichever is later.

        Raises:
            NoSuchJob, NoSuchStep.
            StoreError: how long it is can't be read now.
        """
        job, index = self._find(job_id, step_name)
        if tail is not None:
            since = max(since, self._extent(job, index).lines - tail)

        def extent() -> LogExtent:
            try:
                now = self._store.get(job_id)
            except NoSuchJob:
                now = None
            if now is None or now.uid != job.uid:  # it was removed
                return LogExtent(is_final=True)
            return self._extent(now, index)

        return StepLogCursor(self.path(job, index), extent, since=since)

    def _find(self, job_id: str, step_name: str) -> tuple[Job, int]:
        job = self._store.get(job_id)
        for index, step in enumerate(job.steps):
            if step.name == step_name:
                return job, index
        raise NoSuchStep(job_id, step_name)

    def _extent(self, job: Job, index: int) -> LogExtent:
        """How far the file is, for a record that was read just before. Raises StoreError."""
        if job.steps[index].status.is_terminal:
            return replace(stored_extent(self.path(job, index)), is_final=True)
        run = self._run_of(job.id)
        live = run.log(index) if run else None
        return stored_extent(self.path(job, index)) if live is None else live.extent()
