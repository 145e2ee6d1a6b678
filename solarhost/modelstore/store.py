"""The models on disk: what is there, where a source URI points, and what may be deleted."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from solarhost.errors import InvalidRequest
from solarhost.events import Publish
from solarhost.modelstore.manifest import Entry, Manifest
from solarhost.modelstore.sources import Scheme, Source, parse_source
from solarhost.problems import Problems
from solarhost.settings import Settings


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
        self._publish = publish
        self._in_use = in_use  # files and folders that running instances hold
        self._manifest = Manifest(self.folder, problems)

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
        if self._manifest.find(source.key) is None or not folder.is_dir():
            raise NotPulled(source.uri, "not pulled yet: ask for it with POST /models/pull first")
        if not source.subpath:
            return folder
        file = (folder / source.subpath).resolve()
        if not file.is_file() or not file.is_relative_to(folder.resolve()):
            raise NotPulled(source.uri, f"the pulled model has no file {source.subpath!r}")
        return file

    def list(self) -> list[dict[str, Any]]:
        """The body of `GET /models`, from the manifest alone."""
        return [self._as_json(entry) for entry in self._manifest.entries()]

    def _resolve_local(self, source: Source) -> Path:
        path = (self.folder / source.subpath).resolve()  # an absolute subpath replaces the folder
        if not path.is_relative_to(self.folder):
            raise NotPulled(source.uri, f"local:// reaches files inside {self.folder} only")
        try:
            path.stat()
        except OSError as error:
            raise NotPulled(source.uri, f"{path}: {error.strerror}") from error
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
