"""Job records, in memory and one file each."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock

from solarhost.errors import StoreError
from solarhost.files import Damaged, read_json, set_aside, write_json
from solarhost.jobs.errors import InvalidJob, JobExists, NoSuchJob
from solarhost.jobs.records import Job
from solarhost.problems import Problems
from solarhost.shortages import why

logger = logging.getLogger(__name__)

GONE_LIMIT = 1_000


class JobStore:
    """All jobs of this host. Safe from any thread.

    The files are 0600 in a folder of their own: a step's environment may hold secrets. The record of a
    job that is gone stays there under another name while solar-control has not got all events of it.
    """

    def __init__(self, folder: Path, problems: Problems):
        self._folder = folder
        self._problems = problems
        self._lock = Lock()  # guards _jobs, _gone and the files
        self._jobs: dict[str, Job] = {}
        self._gone: dict[str, Job] = {}  # by uid: the newest GONE_LIMIT that are still to be told

    def load(self) -> None:
        """Read what an earlier agent left; a file that makes no sense is set aside and reported.

        Raises:
            StoreError: the folder can't be made, or not all can be read now: a job that is not known would
                lose its containers.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            paths = sorted(path for path in self._folder.iterdir() if path.suffix in (".json", ".gone"))
        except OSError as error:
            raise StoreError(f"{self._folder} can't be used: {why(error)}") from error
        with self._lock:
            for path in paths:
                try:
                    job = Job.from_json(read_json(path))
                except (Damaged, InvalidJob, KeyError, TypeError, ValueError, AttributeError) as error:
                    aside = set_aside(path)
                    self._problems.report(
                        f"jobs.record.{path.stem}",
                        f"job record {path.name} makes no sense, kept as {aside}: {error}",
                    )
                else:
                    if path.suffix == ".gone":
                        self._gone[job.uid] = job
                    else:
                        self._jobs[job.id] = job

    def add(self, job: Job) -> None:
        """Raises JobExists, or StoreError: it could not be written, so it is not known."""
        with self._lock:
            self._demand_unknown(job.id)
            self._write(job)

    def demand_unknown(self, job_id: str) -> None:
        """Raises JobExists."""
        with self._lock:
            self._demand_unknown(job_id)

    def update(self, job_id: str, change: Callable[[Job], Job]) -> Job:
        """Replace a record by `change(record)`, on disk, then in memory; return the new one.

        Raises:
            NoSuchJob, StoreError: nothing was changed.
        """
        with self._lock:
            job = change(self._get(job_id))
            self._write(job)
            return job

    def get(self, job_id: str) -> Job:
        """Raises NoSuchJob."""
        with self._lock:
            return self._get(job_id)

    def all(self) -> list[Job]:
        """Every job, oldest first."""
        with self._lock:
            return sorted(self._jobs.values(), key=lambda job: (job.created_at, job.id))

    def remove(self, job_id: str) -> None:
        """Forget a job, but for what is still to be told of it. Fine when it is not known.

        Raises:
            StoreError: it could not be removed.
        """
        with self._lock:
            job = self._jobs.get(job_id)
            if job is None:
                return
            try:
                if job.is_told:
                    self._path(job_id).unlink()
                else:
                    self._path(job_id).replace(self._gone_path(job.uid))
            except FileNotFoundError:
                pass
            except OSError as error:
                raise StoreError(f"record of job {job_id} can't be removed: {why(error)}") from error
            del self._jobs[job_id]
            if not job.is_told:
                self._gone[job.uid] = job
            while len(self._gone) > GONE_LIMIT:
                self._drop_gone(next(iter(self._gone)))

    def told(self, uid: str, number: int) -> None:
        """solar-control has the first `number` events of this job.

        Should the disk be full, that goes with the record's next change; until then a kill of the agent
        brings those events again.
        """
        with self._lock:
            job = self._gone.get(uid) or next((job for job in self._jobs.values() if job.uid == uid), None)
            if job is None:
                return
            job = replace(job, told=number)
            if uid not in self._gone:
                self._jobs[job.id] = job
                path = self._path(job.id)
            elif job.is_told:
                self._drop_gone(uid)
                return
            else:
                self._gone[uid] = job
                path = self._gone_path(uid)
            try:
                write_json(path, job.as_json())
            except StoreError as error:
                logger.warning("job %s: what was told of it is not on disk: %s", job.id, error)

    def untold(self) -> list[Job]:
        """Ended jobs, gone or not, of which solar-control has not got all events; oldest first."""
        with self._lock:
            jobs = [job for job in (*self._jobs.values(), *self._gone.values()) if not job.is_told]
        ended = [job for job in jobs if job.status.is_terminal]
        return sorted(ended, key=lambda job: (job.finished_at or "", job.uid))

    def _demand_unknown(self, job_id: str) -> None:
        if job_id in self._jobs:
            raise JobExists(f"job {job_id} exists already")

    def _get(self, job_id: str) -> Job:
        try:
            return self._jobs[job_id]
        except KeyError:
            raise NoSuchJob(job_id) from None

    def _write(self, job: Job) -> None:
        write_json(self._path(job.id), job.as_json())
        self._jobs[job.id] = job

    def _drop_gone(self, uid: str) -> None:
        del self._gone[uid]
        with suppress(OSError):  # a full or broken disk; some of it comes again after a restart
            self._gone_path(uid).unlink()

    def _path(self, job_id: str) -> Path:
        return self._folder / f"{job_id}.json"

    def _gone_path(self, uid: str) -> Path:
        return self._folder / f"{uid}.gone"
