"""Removing what jobs leave behind: containers, workspaces, records."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from threading import Event

from solarhost.containers.engine import Engine
from solarhost.containers.errors import EngineAway, EngineRefused
from solarhost.errors import StoreError
from solarhost.jobs.preparation import LABEL_RUN, LABEL_STEP, Preparation
from solarhost.jobs.records import Job, Status
from solarhost.jobs.store import JobStore
from solarhost.jobs.workspace import Workspaces
from solarhost.problems import Problems

logger = logging.getLogger(__name__)


class Tidying:
    """Safe from any thread.

    Args:
        has_run: whether a job has a thread now, which then does this itself.
    """

    def __init__(
        self,
        store: JobStore,
        engine: Engine,
        workspaces: Workspaces,
        preparation: Preparation,
        problems: Problems,
        has_run: Callable[[str], bool],
    ):
        self._store = store
        self._engine = engine
        self._workspaces = workspaces
        self._preparation = preparation
        self._problems = problems
        self._has_run = has_run
        self._due = Event()
        self._due.set()

    def left_behind(self) -> None:
        """There may be containers that nobody needs."""
        self._due.set()

    def sweep(self) -> None:
        """If it is due: remove containers whose step has ended or is not known, and what cancelled jobs left.

        Raises:
            EngineAway, EngineRefused: it stays due.
        """
        if not self._due.is_set():
            return
        self._due.clear()
        try:
            for container_id, labels in self._engine.find(self._preparation.host_labels()):
                if not self._is_needed(labels[LABEL_RUN], int(labels[LABEL_STEP])):
                    self._engine.remove(container_id)
                    logger.info("container %s removed: its step is over", container_id[:12])
        except (EngineAway, EngineRefused):
            self._due.set()
            raise
        self._discard_cancelled()

    def apply_retention(self) -> None:
        """Remove the jobs that have been kept long enough."""
        for job in self._store.all():
            if job.retention_deadline is not None and job.retention_deadline <= datetime.now(UTC):
                self.discard(job)
        self._discard_cancelled()

    def discard(self, job: Job) -> None:
        """Remove all of an ended job; what can't be removed now is reported, and tried again later."""
        key = f"jobs.discard.{job.id}"
        try:
            if job.status is Status.CANCELLED:  # others had theirs removed before they ended
                for container_id, _ in self._engine.find({LABEL_RUN: job.uid}):
                    self._engine.remove(container_id)
            self._workspaces.remove(job.id)
            self._store.remove(job.id)
        except (EngineAway, EngineRefused, StoreError) as error:
            if not isinstance(error, StoreError):
                self._due.set()  # soon; the rest waits for the next round of the retention
            self._problems.report(key, f"job {job.id} can't be removed: {error}")
        else:
            self._problems.clear(key)

    def _discard_cancelled(self) -> None:
        for job in self._store.all():
            if job.status is Status.CANCELLED and not self._has_run(job.id):
                self.discard(job)

    def _is_needed(self, uid: str, index: int) -> bool:
        for job in self._store.all():
            if job.uid == uid:
                return not job.status.is_terminal and not job.steps[index].status.is_terminal
        return False
