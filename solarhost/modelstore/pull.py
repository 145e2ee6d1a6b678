"""One pull: what was asked for, what became of it, and the work itself, done through a worker process."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import Any
from uuid import uuid4

from solarhost.errors import StoreError
from solarhost.modelstore.cache import untouched
from solarhost.modelstore.disk import DiskPromises
from solarhost.modelstore.failures import PullError, could_not_write
from solarhost.modelstore.filters import Filters, covers
from solarhost.modelstore.job import Job
from solarhost.modelstore.manifest import Entry, FileStamp, Manifest
from solarhost.modelstore.progress import Progress
from solarhost.modelstore.sources import Scheme, Source
from solarhost.modelstore.staging import Staging
from solarhost.modelstore.workerprocess import WorkerEnded, WorkerProcess
from solarhost.settings import Settings, environment_without_secrets
from solarhost.times import now_iso

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """What a caller wants on disk."""

    source: Source
    reference: str  # id of the model at the hub, reference of the artifact in the registry
    filters: Filters = None
    gguf: bool = False  # it is for llama.cpp
    size_bytes: int | None = None  # as the caller knows it; shown until the source has told
    labels: Mapping[str, Any] = field(default_factory=dict)  # fields of the manifest, stored as they came


class Pull:
    """One download, which several requests may wait for. `run` belongs to its thread."""

    def __init__(self, request: PullRequest, filters: Filters, progress: Progress):
        self.id = f"pull-{uuid4().hex[:12]}"
        self.request = request
        self.filters = filters  # of the request, and of what is on disk already
        self.progress = progress
        self.started_at = now_iso()
        self.ended = Event()
        # The outcome, final once `ended` is set:
        self.cached = False  # nothing had to be downloaded
        self.error: PullError | None = None
        self.resumable = False  # it failed, but the bytes it has are worth keeping
        self._lock = Lock()  # guards what follows
        self._stopped: PullError | None = None
        self._past_stopping = False
        self._worker: WorkerProcess | None = None

    def stop(self, why: str, *, resumable: bool = False) -> None:
        """Have it fail, unless its files are being put in place already."""
        with self._lock:
            if self._past_stopping or self._stopped:
                return
            self._stopped = PullError("model_pull_failed", why)
            self.resumable = resumable
            if self._worker:
                self._worker.kill()

    @property
    def stopped(self) -> PullError | None:
        with self._lock:
            return self._stopped

    def run(self, settings: Settings, folder: Path, manifest: Manifest, disk: DiskPromises) -> None:
        """Bring the model into `folder`, or set `error` and leave its present version as it is."""
        source = self.request.source
        staging = Staging(folder, source.slug)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            entry = manifest.find(source.key)
            job = self._job(settings, folder, entry)
            if entry and job.verify_present:
                self.progress.expect(entry.size_bytes)
            done = self._download(settings, disk, job)
            self.progress.enter("finalizing")
            self._put_in_place(staging, manifest, entry, done)
            self.cached = done["cached"]
        except PullError as error:
            self.error = error
        except (OSError, StoreError) as error:
            self.error = could_not_write(error)
        except Exception as error:  # those who wait must get an answer
            logger.exception("pull of %s failed", source.uri)
            self.error = PullError("model_pull_failed", f"unexpected: {error!r}")
        if not (self.error and self.resumable):
            staging.remove()

    def _put_in_place(
        self, staging: Staging, manifest: Manifest, before: Entry | None, done: Mapping[str, Any]
    ) -> None:
        fresh = staging.tree.exists()  # else the version on disk was found to be right
        if fresh:
            staging.publish({*before.files, *before.file_digests} if before else ())
        try:
            manifest.put(self._entry(before, done))
        except StoreError:
            if fresh:
                staging.withdraw()
            raise

    def _download(self, settings: Settings, disk: DiskPromises, job: Job) -> dict[str, Any]:
        with self._lock:
            if self._stopped:
                raise self._stopped
            self._worker = worker = WorkerProcess(job, _environment(settings))
        try:
            done = self._listen(worker, settings.pull_progress_interval_s, disk)
        except WorkerEnded:
            done = None
        finally:
            how = worker.reap()
            disk.end(self.progress)
        with self._lock:
            if self._stopped:
                raise self._stopped
            if done is None:
                self.resumable = True
                raise PullError(
                    "model_pull_failed", f"its worker ended with {how}; a later pull continues from here"
                )
            self._past_stopping = True
        return done

    def _listen(self, worker: WorkerProcess, interval_s: float, disk: DiskPromises) -> dict[str, Any]:
        """Follow the worker to its `done` message."""
        while True:
            for message in worker.receive(min(interval_s, 1.0)):
                match message:
                    case {"phase": phase}:
                        self.progress.enter(phase)
                    case {"plan": plan}:
                        self.progress.expect(plan["bytes_total"])
                        disk.give(self.progress, plan["bytes_needed"])
                        worker.go()
                    case {"trouble": trouble}:
                        self.progress.meet(trouble)
                    case {"bytes_done": count}:
                        self.progress.count(count)
                    case {"done": done}:
                        return dict(done)
                    case {"failed": failure}:
                        raise PullError(failure["code"], failure["detail"], status=failure["status"])
            self.progress.tick()
            disk.check(self.progress)

    def _job(self, settings: Settings, folder: Path, entry: Entry | None) -> Job:
        source = self.request.source
        hub = source.scheme is Scheme.HUB
        trust_stamps = settings.verify_cached == "size"
        return Job(
            models_folder=str(folder),
            slug=source.slug,
            kind="hub" if hub else "registry",
            reference=self.request.reference,
            url=settings.hf_endpoint if hub else settings.harbor_url,
            username="" if hub else settings.harbor_username,
            secret=settings.hf_token if hub else settings.harbor_password,
            filters=self.filters,
            subpath=source.subpath,
            gguf=self.request.gguf,
            present=dict(entry.file_digests) if entry else {},
            untouched=untouched(folder / entry.slug, entry) if entry and trust_stamps else (),
            verify_present=bool(
                entry and entry.file_digests and covers(entry.file_filters, self.request.filters)
            ),
            revision=entry.revision if entry else None,
            stall_s=settings.pull_stall_timeout_s,
            retries=settings.pull_retries,
            retry_delay_s=settings.pull_retry_delay_s,
        )

    def _entry(self, before: Entry | None, done: Mapping[str, Any]) -> Entry:
        source, files = self.request.source, done["files"]
        labels = {name: getattr(before, name) for name in self.request.labels} if before else {}
        labels |= {name: value for name, value in self.request.labels.items() if value is not None}
        return Entry(
            slug=source.slug,
            source_uri=source.key,
            size_bytes=sum(stamp["size_bytes"] for stamp in files.values()),
            downloaded_at=before.downloaded_at if before and done["cached"] else now_iso(),
            file_digests={name: stamp["sha256"] for name, stamp in files.items()},
            file_filters=None if self.filters is None else tuple(self.filters),
            revision=done["revision"],
            files={name: FileStamp(stamp["size_bytes"], stamp["mtime_ns"]) for name, stamp in files.items()},
            extra=before.extra if before else {},
            **labels,
        )


def _environment(settings: Settings) -> dict[str, str]:
    """What a worker gets: the agent's own, without keys, which it reads from its standard input."""
    environment = environment_without_secrets()
    environment["HF_HUB_DISABLE_TELEMETRY"] = "1"
    if authority := settings.ssl_cert_file or settings.requests_ca_bundle:
        environment["SSL_CERT_FILE"] = environment["REQUESTS_CA_BUNDLE"] = authority
    return environment
