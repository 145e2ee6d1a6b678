"""The pulls of this host: one for each model, a few at once, shared by those who ask for the same."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Condition
from typing import Any

from solarhost.errors import Conflict, NotFound, Unavailable
from solarhost.events import Publish
from solarhost.modelstore.cache import is_intact
from solarhost.modelstore.disk import DiskPromises
from solarhost.modelstore.failures import PullError
from solarhost.modelstore.filters import covers, union
from solarhost.modelstore.manifest import Manifest
from solarhost.modelstore.progress import Progress
from solarhost.modelstore.pull import Pull, PullRequest
from solarhost.modelstore.staging import Leftovers
from solarhost.settings import Settings
from solarhost.threads import ThreadGroup

logger = logging.getLogger(__name__)


class PullService:
    """Runs pulls. Safe from any thread."""

    def __init__(self, settings: Settings, folder: Path, manifest: Manifest, publish: Publish):
        self._settings = settings
        self._folder = folder
        self._manifest = manifest
        self._publish = publish
        self._leftovers = Leftovers(folder)
        self._disk = DiskPromises(folder, settings.min_free_disk_gb, lambda: self.sweep(0.0))
        self._threads = ThreadGroup()
        self._changed = Condition()  # guards what follows; notified when a pull ends or is stopped
        self._live: dict[str, Pull] = {}  # by slug, oldest first: the first `max_pulls` of them run
        self._closing = False
        self._outcomes = {"completed": 0, "cached": 0, "failed": 0}

    def pull(self, request: PullRequest) -> bool:
        """Return once the model is on disk; True when it was there already.

        Raises:
            PullError: it could not be pulled; what was on disk before still is.
            Unavailable: the agent is stopping, or can start no thread.
        """
        while not self._is_cached(request):
            with self._changed:
                pull = self._live.get(request.source.slug) or self._begin(request)
            pull.ended.wait()
            if pull.request.source.key != request.source.key or not covers(pull.filters, request.filters):
                continue  # the same folder, but other files: now they can come
            if pull.error:
                raise pull.error.about(request.source.uri)
            return pull.cached
        with self._changed:
            self._outcomes["cached"] += 1
        return True

    def list(self) -> Sequence[dict[str, Any]]:
        """The pulls that run or wait, oldest first."""
        with self._changed:
            pulls = enumerate([*self._live.values()], start=1 - self._settings.max_pulls)
        return [_as_json(pull, position) for position, pull in pulls]

    def stats(self) -> dict[str, int]:
        """Pulls since the start by their outcome, and those running and queued now."""
        with self._changed:
            running = min(len(self._live), self._settings.max_pulls)
            return {**self._outcomes, "running": running, "queued": len(self._live) - running}

    def cancel(self, pull_id: str) -> str:
        """Stop a pull; return its source URI once its traffic has ended and its disk is given back.

        Raises:
            NotFound: no such pull is running or waiting.
            Conflict: it was complete before it could be stopped.
        """
        with self._changed:
            pull = next((pull for pull in self._live.values() if pull.id == pull_id), None)
            if pull is None:
                raise NotFound(f"no pull {pull_id!r} is running or waiting")
            pull.stop("it was cancelled")
            self._changed.notify_all()
        pull.ended.wait()
        if pull.error is None:
            raise Conflict(f"pull {pull_id} was complete already")
        return pull.request.source.uri

    @contextmanager
    def quiet(self, slug: str) -> Iterator[None]:
        """Let no pull of this model begin, for a short change of its folder.

        Raises:
            Conflict: it is being pulled right now.
        """
        with self._changed:
            if slug in self._live:
                raise Conflict(f"{slug} is being pulled: wait, or cancel {self._live[slug].id} first")
            yield

    def sweep(self, older_than_s: float) -> None:
        """Remove what broken pulls left and nobody continued for so long."""
        with self._changed:
            self._leftovers.discard(older_than_s, live=self._live)
        self._leftovers.empty_trash()

    def close(self, deadline: float) -> None:
        """End all pulls by a `time.monotonic()` deadline; what they have stays for the next agent."""
        with self._changed:
            self._closing = True
            for pull in self._live.values():
                pull.stop("the agent is stopping; a later pull continues from here", resumable=True)
            self._changed.notify_all()
        for thread in self._threads.join_by(deadline):
            logger.error("%s did not end in time", thread.name)

    def _is_cached(self, request: PullRequest) -> bool:
        """True when disk and manifest answer the request without a worker."""
        entry = self._manifest.find(request.source.key)
        if entry is None or not covers(entry.file_filters, request.filters):
            return False
        if self._settings.verify_cached == "full" and entry.file_digests:
            return False  # reading it through is a worker's task
        return is_intact(self._folder / entry.slug, entry)

    def _begin(self, request: PullRequest) -> Pull:
        """Start a pull. The caller holds the lock. Raises NoThread."""
        if self._closing:
            raise Unavailable("the agent is stopping")
        source = request.source
        known = self._manifest.find_slug(source.slug)
        if known and known.source_uri != source.key:
            raise PullError(
                "invalid_request", f"its folder {source.slug} belongs to {known.source_uri}", source.uri
            )
        filters = request.filters
        if known and (self._folder / known.slug).is_dir():  # what is there stays
            filters = union(known.file_filters, filters)
        progress = Progress(
            source.key, request.size_bytes, self._settings.pull_progress_interval_s, self._publish
        )
        pull = Pull(request, filters, progress)
        self._threads.spawn(pull.id, lambda: self._run(pull))  # it waits for the lock
        self._live[source.slug] = pull
        return pull

    def _run(self, pull: Pull) -> None:
        """The thread of one pull."""
        self._await_turn(pull)
        pull.run(self._settings, self._folder, self._manifest, self._disk)
        if pull.error:
            logger.warning("pull of %s failed: %s: %s", pull.request.source.uri, pull.error.code, pull.error)
        else:
            logger.info("pull of %s is complete", pull.request.source.uri)
        pull.progress.enter("failed" if pull.error else "completed")
        with self._changed:
            self._outcomes["failed" if pull.error else "cached" if pull.cached else "completed"] += 1
            del self._live[pull.request.source.slug]
            self._changed.notify_all()
        pull.ended.set()

    def _await_turn(self, pull: Pull) -> None:
        """Return when it may run, or was stopped."""

        def has_turn() -> bool:
            return bool(pull.stopped) or pull in [*self._live.values()][: self._settings.max_pulls]

        while True:
            with self._changed:
                if self._changed.wait_for(has_turn, self._settings.pull_progress_interval_s):
                    return
            pull.progress.tick()


def _as_json(pull: Pull, position: int) -> dict[str, Any]:
    """As `GET /models/pulls` shows it; a position above 0 is one in the queue."""
    now = pull.progress.snapshot
    return {
        "id": pull.id,
        "source_uri": pull.request.source.key,
        "phase": now.phase,
        "queue_position": position if position > 0 else None,
        "bytes_done": now.bytes_done,
        "bytes_total": now.bytes_total,
        "speed_bps": now.speed_bps,
        "trouble": now.trouble,
        "started_at": pull.started_at,
        "file_filters": None if pull.filters is None else [*pull.filters],
    }
