"""Job records, in memory and one file each."""

from collections.abc import Callable
from pathlib import Path
from threading import Lock

from solarhost.errors import StoreError
from solarhost.files import Unreadable, read_json, set_aside, write_json
from solarhost.jobs.errors import InvalidJob, JobExists, NoSuchJob
from solarhost.jobs.records import Job
from solarhost.problems import Problems


class JobStore:
    """All jobs of this host. Safe from any thread.

    The files are 0600 in a folder of their own: a step's environment may hold secrets.
    """

    def __init__(self, folder: Path, problems: Problems):
        self._folder = folder
        self._problems = problems
        self._lock = Lock()  # guards _jobs and the files
        self._jobs: dict[str, Job] = {}

    def load(self) -> None:
        """Read what an earlier agent left; a file that makes no sense is set aside and reported.

        Raises:
            StoreError: the folder can't be made or read.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            paths = sorted(self._folder.glob("*.json"))
        except OSError as error:
            raise StoreError(f"{self._folder} can't be used: {error.strerror or error}") from error
        with self._lock:
            for path in paths:
                try:
                    job = Job.from_json(read_json(path))
                except (Unreadable, InvalidJob, KeyError, TypeError, ValueError) as error:
                    aside = set_aside(path)
                    self._problems.report(
                        f"jobs.record.{path.stem}",
                        f"job record {path.name} makes no sense, kept as {aside}: {error}",
                    )
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
        """Forget a job; fine when it is not known. Raises StoreError."""
        with self._lock:
            try:
                self._path(job_id).unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(f"record of job {job_id} can't be removed: {error.strerror}") from error
            self._jobs.pop(job_id, None)

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

    def _path(self, job_id: str) -> Path:
        return self._folder / f"{job_id}.json"
