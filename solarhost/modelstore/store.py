"""The models on disk: what is there, where a source URI points, and what may be deleted."""

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from solarhost.errors import InvalidRequest, NotFound
from solarhost.events import Publish
from solarhost.files import is_file, is_folder
from solarhost.modelstore.failures import PullError
from solarhost.modelstore.filters import Filters
from solarhost.modelstore.manifest import Entry, Manifest
from solarhost.modelstore.pull import PullRequest
from solarhost.modelstore.pulls import PullService
from solarhost.modelstore.removal import check_unused, take_away, to_go
from solarhost.modelstore.selection import choose_weights
from solarhost.modelstore.sources import MalformedSource, Scheme, Source, is_model_id, parse_source
from solarhost.modelstore.staging import Leftovers, files_in
from solarhost.problems import Problems
from solarhost.settings import Settings
from solarhost.shortages import why
from solarhost.threads import PeriodicThread, join_by

SWEEP_INTERVAL_S = 3600.0
PARTS_KEPT_S = 86400.0  # how long a broken pull can be continued
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(?:[/:@][A-Za-z0-9._+-]+)*", re.ASCII)


class NotPulled(InvalidRequest):
    """A source URI whose model, or the file named inside it, is not on disk."""

    def __init__(self, uri: str, why: str):
        super().__init__(f"model source {uri!r}: {why}", {"model_source": [why]})
        self.uri = uri


class ModelStore:
    """Everything under `MODELS_DIR`. Safe from any thread."""

    def __init__(
        self,
        settings: Settings,
        publish: Publish,
        problems: Problems,
        in_use: Callable[[], Collection[Path]],
    ):
        self.folder = settings.models_dir.resolve()
        self._in_use = in_use  # files and folders that running instances hold
        self._manifest = Manifest(self.folder, problems)
        self._leftovers = Leftovers(self.folder)
        self._pulls = PullService(settings, self.folder, self._manifest, publish)
        self.loop = PeriodicThread("loop-staging", SWEEP_INTERVAL_S, self._sweep)

    def start(self) -> None:
        """Settle what a crash left behind."""
        self._leftovers.recover()
        self._sweep()
        self.loop.start()

    def close(self, deadline: float) -> None:
        """End all pulls by a `time.monotonic()` deadline; what they have stays for the next agent."""
        self.loop.stop()
        self._pulls.close(deadline)
        if self.loop.is_alive():
            join_by([self.loop], deadline)

    def resolve(self, source_uri: str) -> Path:
        """The folder of a pulled model; the file inside it when the URI has a subpath.

        Raises:
            NotPulled: it is not on disk; says to pull it first.
            MalformedSource: the URI can't be read.
        """
        source = parse_source(source_uri)
        if source.scheme is Scheme.LOCAL:
            return self._resolve_local(source)
        folder = self.folder / source.slug
        if self._manifest.find(source.key) is None or not is_folder(folder):
            raise NotPulled(source.uri, "not pulled yet: ask for it with POST /models/pull first")
        if not source.subpath:
            return folder
        file = Path(os.path.realpath(folder / source.subpath))
        if not is_file(file) or not file.is_relative_to(folder.resolve()):
            raise NotPulled(source.uri, f"the pulled model has no file {source.subpath!r}")
        return file

    def list(self) -> list[dict[str, Any]]:
        """The body of `GET /models`, from the manifest alone."""
        return [self._as_json(entry) for entry in self._manifest.entries()]

    def pull(
        self,
        *,
        source: str,
        source_uri: str,
        reference: str,
        filters: Filters = None,
        backend_type: str | None = None,
        size_bytes: int | None = None,
        labels: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Have the model on disk, and answer as `POST /models/pull` does. Blocks as long as that takes.

        Args:
            source: `harbor` or `huggingface`.
            reference: of the artifact in the registry, or id of the model at the hub.
            filters: patterns of the files wanted from the hub; an artifact always comes whole.
            size_bytes: what the caller expects, for progress until the source has told.
            labels: `digest`, `category`, `name`, `version`, `checksum`, `metadata` for the manifest.

        Raises:
            PullError: with the code and the sentence to answer.
            Unavailable: the agent is stopping.
        """
        parsed = _pullable(source, source_uri, reference)
        hub = parsed.scheme is Scheme.HUB
        request = PullRequest(
            source=parsed,
            reference=reference,
            filters=(filters or None) if hub else None,
            gguf=backend_type == "llamacpp",
            size_bytes=size_bytes,
            labels=labels,
        )
        cached = self._pulls.pull(request)
        try:
            path = self._answer(request)
        except PullError as error:
            if self._manifest.find(parsed.key) is None:  # not for want of it at the source
                why = "it was deleted before this could be answered: pull it again"
                raise PullError("model_pull_failed", why, source_uri) from error
            raise
        return {"path": str(path), "cached": cached, "source_uri": source_uri}

    def pulls(self) -> Sequence[dict[str, Any]]:
        """The body of `GET /models/pulls`."""
        return self._pulls.list()

    def cancel(self, pull_id: str) -> str:
        """Stop a pull; return its source URI once its traffic has ended and its disk is given back.

        Raises:
            NotFound: no such pull is running or waiting.
            Conflict: it was complete before it could be stopped.
        """
        return self._pulls.cancel(pull_id)

    def stats(self) -> dict[str, int]:
        """Pulls that were `completed`, `cached` or `failed` since the start; `running` and `queued` now."""
        return self._pulls.stats()

    def delete(self, name: str, filters: Filters = None) -> dict[str, Any]:
        """Delete a model, or its files that match `filters`, and answer as `DELETE /models/{name}` does.

        Raises:
            NotFound: the manifest has no such model.
            Conflict: an instance uses one of the files, or the model is being pulled.
            StoreError: it could not be deleted, and is as it was.
        """
        with self._pulls.quiet(name):
            entry = self._manifest.find_slug(name)
            if entry is None:
                raise NotFound(f"no model {name!r} is on this host")
            folder = self.folder / entry.slug
            names = to_go(folder, filters)
            remaining = len(to_go(folder, None)) - len(names)
            freed = sum((folder / file).lstat().st_size for file in names)
            if names or not remaining:
                check_unused(folder, names, self._in_use())
                take_away(folder, names, entry, self._manifest, self._leftovers)
        self._leftovers.empty_trash()
        if not remaining:
            detail = "Model deleted"
        elif names:
            detail = f"{len(names)} files deleted, {remaining} remain"
        else:
            detail = "No file matches the filters"
        return {
            "detail": detail,
            "name": name,
            "removed": names,
            "freed_bytes": freed,
            "remaining": remaining,
        }

    def _sweep(self) -> None:
        self._pulls.sweep(PARTS_KEPT_S)

    def _answer(self, request: PullRequest) -> Path:
        """The path to tell a caller whose model is on disk."""
        source, folder = request.source, self.folder / request.source.slug
        if request.gguf and not any(name.lower().endswith(".gguf") for name in files_in(folder)):
            raise PullError("not_found", "it has no .gguf file, which llama.cpp needs", source.uri)
        try:
            if request.gguf and source.scheme is Scheme.REPO and not source.subpath:
                return choose_weights(folder)  # of the hub one gets the folder, and picks with `model_file`
            return self.resolve(source.uri)
        except InvalidRequest as error:
            raise PullError("not_found", str(error), source.uri) from error

    def _resolve_local(self, source: Source) -> Path:
        # An absolute subpath replaces the folder. `Path.resolve` would raise for a link that leads to itself.
        path = Path(os.path.realpath(self.folder / source.subpath))
        if not path.is_relative_to(self.folder):
            raise NotPulled(source.uri, f"local:// reaches files inside {self.folder} only")
        try:
            path.stat()
        except OSError as error:
            raise NotPulled(source.uri, f"{path}: {why(error)}") from error
        return path

    def _as_json(self, entry: Entry) -> dict[str, Any]:
        return {
            "name": entry.slug,
            "path": str(self.folder / entry.slug),
            "size_bytes": entry.size_bytes,
            "source_uri": entry.source_uri,
            "checksum": entry.checksum,
            "digest": entry.digest,
            "downloaded_at": entry.downloaded_at,
            "category": entry.category,
            "model_name": entry.name,
            "version": entry.version,
            "metadata": dict(entry.metadata),
            "file_filters": None if entry.file_filters is None else list(entry.file_filters),
            "files": [
                {"name": name, "size_bytes": stamp.size_bytes} for name, stamp in sorted(entry.files.items())
            ],
        }


def _pullable(source: str, uri: str, reference: str) -> Source:
    """Read what a pull is asked for. Raises PullError when it makes no sense."""
    try:
        parsed = parse_source(uri)
    except MalformedSource as error:
        raise PullError("invalid_request", str(error), uri) from error
    expected = {"harbor": Scheme.REPO, "huggingface": Scheme.HUB}[source]
    if parsed.scheme is not expected:
        raise PullError(
            "invalid_request", f"source {source!r} goes with {expected}://, not with {uri!r}", uri
        )
    if parsed.scheme is Scheme.HUB and not is_model_id(reference):
        raise PullError("invalid_request", f"{reference!r} is not a model id of the hub", uri)
    if parsed.scheme is Scheme.REPO and (".." in reference or not _REFERENCE.fullmatch(reference)):
        raise PullError("invalid_request", f"{reference!r} is not a reference of a registry", uri)
    return parsed
