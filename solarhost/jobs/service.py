"""All jobs of this host: taking them, running `MAX_JOBS` at once, cancelling, cleaning up."""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from uuid import uuid4

from solarhost.containers.engine import Engine
from solarhost.containers.errors import EngineAway, EngineRefused
from solarhost.errors import StoreError
from solarhost.events import JobEvent, Publish
from solarhost.jobs.announcements import Announcements
from solarhost.jobs.definitions import JobDefinition, check_gpus
from solarhost.jobs.errors import ExecutorUnavailable, JobEnded, NoSuchJob, StillEnding
from solarhost.jobs.logs import JobLogs
from solarhost.jobs.preparation import Preparation
from solarhost.jobs.records import Job, Status, Step
from solarhost.jobs.run import JobRun, JobTools
from solarhost.jobs.store import JobStore
from solarhost.jobs.tidying import Tidying
from solarhost.jobs.workspace import Workspaces
from solarhost.logs.redaction import Redactor
from solarhost.problems import Problems
from solarhost.settings import Settings
from solarhost.threads import NoThread, PeriodicThread, ThreadGroup, join_by
from solarhost.times import now_iso

logger = logging.getLogger(__name__)

CANCEL_WAIT_S = 8.5  # solar-control gives a DELETE 10 s
DOCKER_CHECK_S = 1.0
RETENTION_CHECK_S = 300.0


@dataclass(frozen=True, slots=True)
class JobView:
    """A job at one moment, for the accounts of resources."""

    running: bool
    pids: tuple[int, ...]  # the first process of each container that runs
    workspace: Path


class JobService:
    """Safe from any thread. Jobs outlive the agent: `start` goes on with those that an earlier one left."""

    def __init__(
        self,
        settings: Settings,
        publish: Publish,
        problems: Problems,
        host_id: Callable[[], str | None],
        gpu_count: Callable[[], int | None],
    ):
        self._settings = settings
        self._problems = problems
        self._gpu_count = gpu_count
        self._engine = Engine(settings.docker_host)
        self._workspaces = Workspaces(
            settings.jobs_dir,
            uid=settings.container_uid,
            gid=settings.container_gid,
            min_free_gb=settings.min_free_disk_gb,
            hf_cache_dir=settings.hf_cache_dir,
        )
        self._preparation = Preparation(settings, self._engine, self._workspaces)
        self._store = JobStore(self._workspaces.folder / ".records", problems)
        self._announcements = Announcements(self._workspaces, publish, host_id)
        self._tidying = Tidying(
            self._store,
            self._engine,
            self._workspaces,
            self._preparation,
            problems,
            has_run=lambda job_id: self._run_of(job_id) is not None,
        )
        self._tools = JobTools(
            settings=settings,
            engine=self._engine,
            store=self._store,
            workspaces=self._workspaces,
            preparation=self._preparation,
            redactor=Redactor(settings.secrets),
            publish=publish,
            announcements=self._announcements,
            problems=problems,
            left_behind=self._tidying.left_behind,
        )
        self.logs = JobLogs(self._store, self._workspaces, self._run_of)
        self._lock = Lock()  # guards the three below
        self._waiting: deque[str] = deque()
        self._runs: dict[str, JobRun] = {}
        self._closing = False
        self._docker_seen = False  # only the Docker loop's
        self._threads = ThreadGroup()
        self._loops = [
            PeriodicThread("loop-docker", DOCKER_CHECK_S, self._check_docker),
            PeriodicThread("loop-job-retention", RETENTION_CHECK_S, self._tidying.apply_retention),
        ]

    def start(self) -> None:
        """Take up the jobs of an earlier agent, first those that had begun.

        Raises:
            StoreError: `JOBS_DIR` can't be used.
        """
        self._store.load()
        for job in self._store.untold():
            self._announcements.announce(job, after=job.told)
        jobs = [job for job in self._store.all() if not job.status.is_terminal]
        with self._lock:
            for job in jobs:
                if job.status is Status.RUNNING:
                    self._launch(job.id)
                else:
                    self._waiting.append(job.id)
            self._fill()
        for loop in self._loops:
            loop.start()

    def close(self, deadline: float) -> None:
        """Let go of the jobs by `deadline` (`time.monotonic()`); their containers run on."""
        with self._lock:
            self._closing = True
            runs = list(self._runs.values())
        for loop in self._loops:
            loop.stop()
        for run in runs:
            run.interrupts.detach()
        loops = [loop for loop in self._loops if loop.ident is not None]  # none if `start` was not reached
        for thread in [*join_by(loops, deadline), *self._threads.join_by(deadline)]:
            logger.warning("thread %s outlived the end of the jobs", thread.name)

    def submit(self, definition: JobDefinition) -> Job:
        """Take a job; once this returns it is on disk and will run.

        Raises:
            GpuUnavailable, JobExists, ExecutorUnavailable, InsufficientStorage, StoreError: nothing was kept.
        """
        available_gpus = self._gpu_count()
        if available_gpus is not None:
            check_gpus(definition, available_gpus)
        self._workspaces.check_disk(definition.min_free_disk_gb)
        job = Job(
            uid=uuid4().hex,
            definition=definition,
            created_at=now_iso(),
            steps=tuple(Step(name=step.name) for step in definition.steps),
        )
        self._demand_docker()
        self._store.demand_unknown(job.id)
        self._workspaces.check_vacant(job.id)
        self._store.add(job)  # first, so that a workspace is never without its record
        try:
            self._workspaces.create(job)
        except StoreError:
            self._store.remove(job.id)
            raise
        with self._lock:
            self._waiting.append(job.id)
            self._fill()
        return job

    def get(self, job_id: str) -> Job:
        """Raises NoSuchJob."""
        return self._store.get(job_id)

    def list(self) -> list[Job]:
        """Every job that was not cancelled or outlived, oldest first."""
        return self._store.all()

    def delivered(self, event: JobEvent) -> None:
        """solar-control has this event, or there is no control: it is not sent again."""
        self._store.told(event.run, event.number)

    def workspace(self, job_id: str) -> Path:
        return self._workspaces.path(job_id)

    def cancel(self, job_id: str) -> None:
        """End a job and remove all of it: containers, workspace, record. Returns when they are gone.

        Raises:
            NoSuchJob.
            JobEnded: it has ended by itself.
            StillEnding: after CANCEL_WAIT_S something of it is still there; it goes on ending.
            NoThread: it waits for its turn, and nothing could be started to end it: ask again.
        """
        deadline = time.monotonic() + CANCEL_WAIT_S
        job = self._store.get(job_id)
        if job.status.is_terminal and job.status is not Status.CANCELLED:
            raise JobEnded(job_id, job.status)
        try:
            self._store.update(job_id, lambda job: replace(job, cancel_requested=True))
        except StoreError as error:  # it only matters if the agent dies within the next seconds
            logger.warning("job %s: its cancellation is not on disk: %s", job_id, error)
        with self._lock:
            run = self._runs.get(job_id)
            if run is None and job_id in self._waiting:
                run = self._launch(job_id)  # a thread of its own ends it: no slot is needed for that
                self._waiting.remove(job_id)
        if run is not None:
            run.interrupts.cancel()
            run.over.wait(max(0.0, deadline - time.monotonic()))
        elif job.status is Status.CANCELLED:
            self._tidying.discard(job)
        try:
            job = self._store.get(job_id)
        except NoSuchJob:
            return
        if job.status.is_terminal and job.status is not Status.CANCELLED:
            raise JobEnded(job_id, job.status)
        raise StillEnding(f"job {job_id} is cancelled but not all gone yet: GET it, or DELETE again later")

    def view(self, job_id: str) -> JobView | None:
        """None when there is no such job."""
        try:
            job = self._store.get(job_id)
        except NoSuchJob:
            return None
        run = self._run_of(job_id)
        pid = run.pid if run else None
        return JobView(
            running=job.status is Status.RUNNING,
            pids=() if pid is None else (pid,),
            workspace=self._workspaces.path(job_id),
        )

    def counts(self) -> dict[str, int]:
        """Jobs by status, for the metrics."""
        found = Counter(str(job.status) for job in self._store.all())
        return {str(status): found[str(status)] for status in Status}

    @property
    def loops(self) -> Sequence[PeriodicThread]:
        """For the metrics and `/health`."""
        return self._loops

    def _run_of(self, job_id: str) -> JobRun | None:
        with self._lock:
            return self._runs.get(job_id)

    def _demand_docker(self) -> None:
        with self._lock:
            if self._closing:
                raise ExecutorUnavailable("the agent is about to end")
        try:
            self._engine.ping()
        except (EngineAway, EngineRefused) as error:
            self._problems.report("docker", f"{error}; jobs wait")  # the Docker loop clears it
            raise ExecutorUnavailable(str(error)) from error

    def _fill(self) -> None:
        """Launch waiting jobs while there is room. The caller holds `_lock`."""
        while self._waiting and len(self._runs) < self._settings.max_jobs and not self._closing:
            try:
                self._launch(self._waiting[0])
            except NoThread as error:  # the Docker loop tries again
                logger.warning("jobs wait: %s", error)
                return
            self._waiting.popleft()

    def _launch(self, job_id: str) -> JobRun:
        """Give a job its thread. The caller holds `_lock`. Raises NoThread."""
        run = JobRun(job_id, self._tools)
        self._threads.spawn(f"job-{job_id}", lambda: self._work(job_id, run))
        self._runs[job_id] = run
        return run

    def _work(self, job_id: str, run: JobRun) -> None:
        try:
            run.run()
            if self._store.get(job_id).status is Status.CANCELLED:
                self._tidying.discard(self._store.get(job_id))
        finally:
            with self._lock:
                del self._runs[job_id]
                self._fill()
            run.over.set()

    def _check_docker(self) -> None:
        """Notice an engine that goes or comes back; remove what nobody needs, launch what found no thread."""
        with self._lock:
            self._fill()
        try:
            self._engine.ping()
            self._tidying.sweep()
        except (EngineAway, EngineRefused) as away:
            self._tidying.left_behind()
            # A host that never had Docker and has no job for it needs none.
            if self._docker_seen or any(not job.status.is_terminal for job in self._store.all()):
                self._problems.report("docker", f"{away}; jobs wait")
            else:
                self._problems.clear("docker")
        else:
            self._docker_seen = True
            self._problems.clear("docker")
