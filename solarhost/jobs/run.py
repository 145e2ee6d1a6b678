"""One job, in its own thread: its steps in order, until the first failure."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Event
from typing import Any, TypeVar

from solarhost.containers.engine import Engine
from solarhost.containers.errors import EngineAway, EngineRefused
from solarhost.errors import StoreError
from solarhost.events import Publish
from solarhost.jobs.announcements import Announcements
from solarhost.jobs.interrupts import Cancelled, Detached, Interrupts
from solarhost.jobs.preparation import Preparation, StepFailed
from solarhost.jobs.records import Job, Status
from solarhost.jobs.step import StepRun
from solarhost.jobs.steplog import StepLog
from solarhost.jobs.store import JobStore
from solarhost.jobs.workspace import Workspaces
from solarhost.logs.redaction import Redactor
from solarhost.problems import Problems
from solarhost.settings import Settings
from solarhost.shortages import is_shortage, refused
from solarhost.threads import NoThread
from solarhost.times import now_iso

logger = logging.getLogger(__name__)

T = TypeVar("T")
RETRY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTools:
    """What every job of this host works with."""

    settings: Settings
    engine: Engine
    store: JobStore
    workspaces: Workspaces
    preparation: Preparation
    redactor: Redactor
    publish: Publish
    announcements: Announcements
    problems: Problems
    left_behind: Callable[[], None]  # a container could not be removed: somebody has to later


class JobRun:
    """Runs a job from wherever its record says it is; its thread alone moves the record on.

    Each change goes to the store first and is announced right after it.
    """

    def __init__(self, job_id: str, tools: JobTools):
        self._job_id = job_id
        self._tools = tools
        self._step: StepRun | None = None
        self._log: tuple[int, StepLog] | None = None  # of the step that runs
        self.interrupts = Interrupts()
        self.over = Event()  # its thread has done all it could

    @property
    def pid(self) -> int | None:
        """The first process of the container that runs now."""
        step = self._step
        return step.pid if step else None

    def log(self, index: int) -> StepLog | None:
        """The log of step `index`; None when that is not the one that runs."""
        log = self._log
        return log[1] if log and log[0] == index else None

    def run(self) -> None:
        """Until the job has ended, or the agent ends."""
        try:
            try:
                self._run()
            except Exception as error:  # the last line of defence: the record must not stay `running`
                logger.exception("job %s: failed by the agent itself", self._job_id)
                words = refused(error) or "an unexpected error of the agent; its log has the details"
                self._end(Status.FAILED, words)
        except Detached:
            logger.info("job %s: left to the next agent", self._job_id)

    def _run(self) -> None:
        job = self._tools.store.get(self._job_id)
        self._tools.announcements.announce(job, after=job.told)
        if job.cancel_requested:
            self.interrupts.cancel()
        try:
            if job.status is Status.PENDING:
                self._begin(job)
            for index in range(len(job.steps)):
                self.interrupts.check()
                failure = self._run_step(index)
                if failure is not None:
                    self._end(Status.FAILED, failure)
                    return
            self.interrupts.check()
        except Cancelled:
            self._end(Status.CANCELLED)
        except StoreError as error:
            self._end(Status.FAILED, str(error))
        else:
            self._end(Status.COMPLETED)

    def _begin(self, job: Job) -> None:
        self._await_engine()
        self._tools.workspaces.create(job)
        self._record(lambda job: replace(job, status=Status.RUNNING, started_at=now_iso()))

    def _await_engine(self) -> None:
        """A job that has not begun waits for Docker as long as it takes."""
        while True:
            self.interrupts.check()
            try:
                self._tools.engine.ping()
            except EngineAway:
                self.interrupts.pause(RETRY_S)
            else:
                return

    def _run_step(self, index: int) -> str | None:
        """Run what is left of a step; None when it went well, else what the job says about its failure."""
        tools = self._tools
        job = tools.store.get(self._job_id)
        if job.steps[index].status is Status.PENDING:
            job = self._record_step(index, status=Status.RUNNING, started_at=now_iso())
        if job.steps[index].status is Status.RUNNING:
            job = self._drive(job, index)
        step = job.steps[index]
        if step.status is Status.CANCELLED:
            raise Cancelled
        if step.status is Status.COMPLETED:
            return None
        if step.exit_code is None:
            return f"step {step.name} failed: {step.error_message}"
        return f"step {step.name} failed with exit code {step.exit_code}"

    def _drive(self, job: Job, index: int) -> Job:
        """Bring a running step to its end; the record with it."""
        tools = self._tools
        log = StepLog(
            job.id,
            job.steps[index].name,
            index,
            tools.workspaces.log_file(job.id, job.steps[index].name),
            tools.redactor,
            tools.publish,
        )
        step = StepRun(
            job,
            index,
            engine=tools.engine,
            preparation=tools.preparation,
            interrupts=self.interrupts,
            log=log,
            docker_grace_s=tools.settings.docker_grace_s,
            note_container=lambda container_id: self._note_container(index, container_id),
        )
        self._step, self._log = step, (index, log)
        try:
            result = self._result(step, log)
            end = log.complete()
            job = self._record_step(index, **result, finished_at=now_iso(), log_end=end)
        finally:
            self._step = self._log = None
            log.close()
        try:
            step.remove_container()
        except (EngineAway, EngineRefused) as error:
            tools.left_behind()
            logger.warning("job %s: a container is left: %s", job.id, error)
        return job

    def _result(self, step: StepRun, log: StepLog) -> dict[str, Any]:
        """What to record of a step, once it has ended."""
        try:
            self._insist(lambda: self._open(log), lambda error: is_shortage(error.__cause__))
            ending = step.run()
        except Cancelled:
            return {"status": Status.CANCELLED}
        except (StepFailed, StoreError, NoThread) as failure:
            status = Status.CANCELLED if self.interrupts.cancelled else Status.FAILED
            return {"status": status, "error_message": str(failure)}
        facts = {"exit_code": ending.exit_code, "signal": ending.signal, "oom_killed": ending.oom_killed}
        if self.interrupts.cancelled:
            return {"status": Status.CANCELLED, **facts}
        if ending.exit_code == 0:
            return {"status": Status.COMPLETED, **facts}
        return {"status": Status.FAILED, "error_message": step.explain(ending), **facts}

    def _note_container(self, index: int, container_id: str) -> None:
        self._record_step(index, container_id=container_id)

    def _end(self, status: Status, error_message: str | None = None) -> None:
        job = self._record(lambda job: job.ended(status, now_iso(), error_message))
        logger.info("job %s: %s%s", job.id, status, f", {error_message}" if error_message else "")

    def _record_step(self, index: int, **changes: Any) -> Job:
        return self._record(lambda job: job.with_step(index, **changes))

    def _record(self, change: Callable[[Job], Job]) -> Job:
        """Store a change, then announce it.

        What can't be written now (disk full) is written later.
        """
        tools = self._tools
        before = len(tools.store.get(self._job_id).happened)
        job = self._insist(lambda: tools.store.update(self._job_id, change))
        tools.announcements.announce(job, after=before)
        return job

    def _open(self, log: StepLog) -> None:
        self.interrupts.check()
        log.open()

    def _insist(self, act: Callable[[], T], worth_it: Callable[[StoreError], bool] = lambda _: True) -> T:
        """What `act` gives, tried until a file can be written and read again, or the agent ends.

        Raises:
            StoreError: trying again is not `worth_it`.
        """
        problems, key = self._tools.problems, f"jobs.store.{self._job_id}"
        while True:
            try:
                result = act()
            except StoreError as error:
                if not worth_it(error):
                    raise
                problems.report(key, f"job {self._job_id} waits: {error}")
                self.interrupts.pause(RETRY_S)
            else:
                problems.clear(key)
                return result
