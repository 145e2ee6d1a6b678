"""The manifest: which models are on disk, where from, and what their files should look like.

Each question looks at the file again, since the folder may be emptied or replaced under a running agent; it
is parsed only when it is another one than before.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from threading import Lock
from typing import Any

from solarhost.errors import StoreError
from solarhost.files import Damaged, Stamp, read_json, set_aside, stamp, write_text
from solarhost.modelstore.sources import unsafe_path
from solarhost.problems import Problems
from solarhost.shapes import check_fields
from solarhost.shortages import why

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What tells a file that was not touched since its content was verified."""

    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One pulled model. Keys of the JSON object that we don't know are kept in `extra`."""

    slug: str
    source_uri: str  # without a subpath
    size_bytes: int
    downloaded_at: str
    digest: str | None = None  # the caller's; it names the OCI manifest
    category: str | None = None
    name: str | None = None
    version: str | None = None
    checksum: str | None = None  # the caller's
    metadata: Mapping[str, Any] = field(default_factory=dict)
    file_digests: Mapping[str, str] = field(default_factory=dict)  # relative path: sha256, hex
    file_filters: tuple[str, ...] | None = None  # None: the whole repository is here
    revision: str | None = None  # commit of the hub, digest of the OCI manifest
    files: Mapping[str, FileStamp] = field(default_factory=dict)  # by relative path
    extra: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self, folder: Path) -> dict[str, Any]:
        """As it stands in the manifest of `folder`."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "extra"}
        return {
            **self.extra,
            **values,
            "path": str(folder / self.slug),
            "file_filters": None if self.file_filters is None else list(self.file_filters),
            "files": {
                name: {"size_bytes": stamp.size_bytes, "mtime_ns": stamp.mtime_ns}
                for name, stamp in self.files.items()
            },
        }


def _parse(raw: Mapping[str, Any]) -> Entry:
    """An entry of the file. Raises KeyError, TypeError, ValueError or AttributeError when it is not one."""
    known = {f.name for f in fields(Entry)} | {"path"}
    slug = str(raw["slug"])
    if not slug or Path(slug).name != slug or slug.startswith(".") or "\0" in slug:
        raise ValueError(f"slug {slug!r} is not a folder name")
    filters = raw.get("file_filters")
    entry = Entry(
        slug=slug,
        source_uri=str(raw["source_uri"]),
        size_bytes=int(raw["size_bytes"]),
        downloaded_at=str(raw["downloaded_at"]),
        digest=raw.get("digest"),
        category=raw.get("category"),
        name=raw.get("name"),
        version=raw.get("version"),
        checksum=raw.get("checksum"),
        metadata=dict(raw.get("metadata") or {}),
        file_digests=dict(raw.get("file_digests") or {}),
        file_filters=None if filters is None else tuple(filters),
        revision=raw.get("revision"),
        files={
            name: FileStamp(int(stamp["size_bytes"]), int(stamp["mtime_ns"]))
            for name, stamp in (raw.get("files") or {}).items()
        },
        extra={key: value for key, value in raw.items() if key not in known},
    )
    check_fields(entry)
    for name in {*entry.files, *entry.file_digests}:
        if why := unsafe_path(name):
            raise ValueError(f"a file name {why}")
    return entry


@dataclass(frozen=True, slots=True)
class _Contents:
    """What one version of the file says."""

    stamp: Stamp | None
    entries: Sequence[Entry] = ()
    unknown: Sequence[Any] = ()  # what stands among them that we don't understand
    by_uri: Mapping[str, Entry] = field(default_factory=dict)
    by_slug: Mapping[str, Entry] = field(default_factory=dict)

    @classmethod
    def of(cls, stamp: Stamp | None, entries: Sequence[Entry], unknown: Sequence[Any]) -> "_Contents":
        first = entries[::-1]  # of two with one name the first counts
        return cls(
            stamp,
            entries,
            unknown,
            {entry.source_uri: entry for entry in first},
            {entry.slug: entry for entry in first},
        )


class Manifest:
    """`manifest.json` of the models folder. Safe from any thread; the agent alone writes it.

    Every question raises a StoreError while the file can't be read: no model is taken for gone.
    """

    def __init__(self, folder: Path, problems: Problems):
        self.path = folder / "manifest.json"
        self._folder = folder
        self._problems = problems
        self._lock = Lock()  # held from reading to writing or setting aside, so that no change is lost
        self._contents = _Contents(None)  # as last seen; replaced, never changed

    def entries(self) -> Sequence[Entry]:
        return self._read().entries

    def find(self, source_uri: str) -> Entry | None:
        """The model of this URI (without a subpath)."""
        return self._read().by_uri.get(source_uri)

    def find_slug(self, slug: str) -> Entry | None:
        return self._read().by_slug.get(slug)

    def put(self, entry: Entry) -> None:
        """Add the entry, in place of the one with its URI.

        Raises:
            StoreError: the file could not be read or written.
        """
        with self._lock:
            contents = self._read_locked()
            others = [known for known in contents.entries if known.source_uri != entry.source_uri]
            self._write([*others, entry], contents.unknown)

    def remove(self, slug: str) -> None:
        """Drop the entry of this slug, if there is one.

        Raises:
            StoreError: the file could not be read or written.
        """
        with self._lock:
            contents = self._read_locked()
            kept = [entry for entry in contents.entries if entry.slug != slug]
            if len(kept) < len(contents.entries):
                self._write(kept, contents.unknown)

    def _read(self) -> _Contents:
        contents = self._contents
        if contents.stamp is not None and contents.stamp == stamp(self.path):
            return contents
        with self._lock:
            return self._read_locked()

    def _read_locked(self) -> _Contents:
        """The caller holds the lock."""
        now = stamp(self.path)  # before the content: what comes between is seen the next time
        if now is None or now != self._contents.stamp:
            self._contents = _Contents.of(now, *self._parsed())
        return self._contents

    def _parsed(self) -> tuple[list[Entry], list[Any]]:
        """The entries of the file, and what stands among them that we don't understand.

        The caller holds the lock.
        """
        try:
            data = read_json(self.path)
            if data is None:
                return [], []
            if not isinstance(data, dict) or not isinstance(data.get("models", []), list):
                raise Damaged(self.path, "no list of models in it")
        except Damaged as error:
            aside = set_aside(self.path)
            self._problems.report(
                "models-manifest", f"{error}; it was kept as {aside.name}, and no model counts as pulled"
            )
            return [], []
        entries, unknown = [], []
        for raw in data.get("models", []):
            try:
                entries.append(_parse(raw))
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                logger.warning("%s: an entry was not understood and is kept as it is: %r", self.path, error)
                unknown.append(raw)
        return entries, unknown

    def _write(self, entries: Sequence[Entry], unknown: Sequence[Any]) -> None:
        """An entry a line, which is quick to make and can still be read."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{self._folder} could not be made: {why(error)}") from error
        listed = [*(entry.as_json(self._folder) for entry in entries), *unknown]
        lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in listed)
        written = write_text(self.path, f'{{"models": [\n{lines}\n]}}', 0o644)
        self._contents = _Contents.of(written, entries, unknown)
