"""A job's folder: what its containers share, and what of it each of them may see."""

import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from solarhost.containers.engine import Bind
from solarhost.errors import StoreError
from solarhost.files import write_json
from solarhost.jobs.definitions import StepDefinition
from solarhost.jobs.errors import InsufficientStorage, JobExists
from solarhost.jobs.records import Job
from solarhost.shortages import why

FOLDERS = ("models", "data", "output", "config", "logs", ".cache")
GIB = 1024**3


class Workspaces:
    """The folders below `JOBS_DIR`. A container sees parts of its own job's, and never `logs`."""

    def __init__(self, jobs_dir: Path, *, uid: int, gid: int, min_free_gb: float, hf_cache_dir: Path | None):
        self.folder = jobs_dir.resolve()  # Docker mounts absolute paths only
        self._uid, self._gid = uid, gid
        self._min_free_gb = min_free_gb
        self._hf_cache_dir = hf_cache_dir.resolve() if hf_cache_dir else None

    def path(self, job_id: str) -> Path:
        return self.folder / job_id

    def log_file(self, job_id: str, step_name: str) -> Path:
        return self.path(job_id) / "logs" / f"{step_name}.log"

    def check_vacant(self, job_id: str) -> None:
        """Raises JobExists: something has its place, which is then not ours to touch."""
        if os.path.lexists(self.path(job_id)):
            raise JobExists(f"{self.path(job_id)} exists already and is not a known job's workspace")

    def check_disk(self, min_free_gb: float | None) -> None:
        """Raises InsufficientStorage: less is free than the job, else the host, demands; or StoreError."""
        required_gb = self._min_free_gb if min_free_gb is None else min_free_gb
        try:
            available_gb = round(shutil.disk_usage(self.folder).free / GIB, 2)
        except OSError as error:
            raise StoreError(f"the disk of {self.folder} can't be measured: {why(error)}") from error
        if available_gb < required_gb:
            raise InsufficientStorage(required_gb, available_gb)

    def create(self, job: Job) -> None:
        """Make a job's folders and config files; whole or not at all. Fine when it is there already.

        Raises:
            StoreError: disk full, or the folders can't be given to the containers' user.
        """
        path = self.path(job.id)
        if path.is_dir():
            return
        draft = path.with_name(f".{job.id}.draft")
        try:
            shutil.rmtree(draft, ignore_errors=True)  # of an agent that was killed right here
            draft.mkdir(mode=0o750)
            for name in FOLDERS:
                (draft / name).mkdir(mode=0o750)
            write_json(draft / "config" / "job.json", _job_config(job), mode=0o640)
            if job.definition.training_config is not None:
                write_json(draft / "config" / "training.json", job.definition.training_config, mode=0o640)
            for folder, _, files in os.walk(draft):
                for owned in (folder, *(os.path.join(folder, name) for name in files)):  # noqa: PTH118
                    os.chown(owned, self._uid, self._gid)
            draft.rename(path)
        except PermissionError as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise StoreError(
                f"workspace of job {job.id} can't be made for user {self._uid}:{self._gid} "
                f"({error.strerror}): run the agent as root, or set CONTAINER_UID and CONTAINER_GID to "
                "the agent's own"
            ) from error
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise StoreError(f"workspace of job {job.id} can't be made: {why(error)}") from error
        except StoreError:
            shutil.rmtree(draft, ignore_errors=True)
            raise

    def binds(self, job_id: str, step: StepDefinition) -> list[Bind]:
        """What a step's container sees of this machine.

        Raises:
            StoreError: the shared HuggingFace cache can't be made.
        """
        path = self.path(job_id)
        inputs_fixed = not step.is_preparation_step
        return [
            Bind(path / "models", "/workspace/models", inputs_fixed),
            Bind(path / "data", "/workspace/data", inputs_fixed),
            Bind(path / "output", "/workspace/output", False),
            Bind(path / "config", "/workspace/config", False),
            Bind(self._hf_cache(path), "/workspace/.cache/huggingface", False),
        ]

    def remove(self, job_id: str) -> None:
        """Delete a workspace; fine when there is none.

        Raises:
            StoreError: some of it could not be deleted.
        """
        path = self.path(job_id)
        try:
            shutil.rmtree(path, onerror=_unlock_and_retry)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"workspace {path} can't be deleted: {why(error)}") from error

    def _hf_cache(self, workspace: Path) -> Path:
        """The host's cache where one is set, else the job's own, which goes with it."""
        if self._hf_cache_dir is None:
            return workspace / ".cache"
        if not self._hf_cache_dir.is_dir():
            try:
                self._hf_cache_dir.mkdir(parents=True)
                os.chown(self._hf_cache_dir, self._uid, self._gid)
            except OSError as error:
                raise StoreError(f"HF_CACHE_DIR {self._hf_cache_dir} can't be made: {error}") from error
        return self._hf_cache_dir


def _job_config(job: Job) -> dict[str, object]:
    definition = job.definition
    return {
        "job_id": job.id,
        "name": definition.name,
        "created_at": job.created_at,
        "pipeline": [step.name for step in definition.steps],
        "base_model_uri": definition.base_model_uri,
        "training_data_uri": definition.training_data_uri,
        "model_selection": definition.model_selection,
        "deployment": definition.deployment,
        "retention_hours": definition.retention_hours,
        "steps": {},
    }


def _unlock_and_retry(remove: Callable[..., object], path: str, failure: tuple[object, ...]) -> None:
    """A step may leave folders that even their owner can't write to."""
    error = failure[1]
    if isinstance(error, FileNotFoundError):
        return
    if not isinstance(error, PermissionError) or remove is not os.unlink:
        raise error  # type: ignore[misc]
    folder = Path(path).parent
    with suppress(OSError):
        folder.chmod(stat.S_IRWXU)
    remove(path)
