"""Deleting pulled models, or some files of one."""

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from solarhost.errors import Conflict, StoreError
from solarhost.modelstore.filters import Filters, literal, matches
from solarhost.modelstore.manifest import Entry, Manifest
from solarhost.modelstore.staging import Leftovers, files_in

_SHARD = re.compile(r"-\d{5}-of-(\d{5}\.gguf)$", re.IGNORECASE)


class ModelInUse(Conflict):
    """A running instance holds a file that is to go."""

    def __init__(self, slug: str, path: Path):
        super().__init__(f"{slug} is in use by an instance ({path}); stop it first")
        self.path = path


def check_unused(folder: Path, names: Sequence[str], in_use: Collection[Path]) -> None:
    """Raises ModelInUse if one of the files `names` in `folder` is in use, itself or through its folder.

    The shards of a split GGUF go together: an instance is started with the first one.
    """
    root = folder.resolve()
    targets = {_family(root / name) for name in names}
    for used in in_use:
        path = used.resolve()
        if _family(path) in targets or any(target.is_relative_to(path) for target in targets):
            raise ModelInUse(folder.name, used)


def take_away(
    folder: Path, names: Sequence[str], entry: Entry, manifest: Manifest, leftovers: Leftovers
) -> None:
    """Move files to the trash and write that they are gone; or leave everything as it was.

    Raises:
        StoreError: the folder could not be read, the manifest not be written, or a file not be moved.
    """
    moved: list[tuple[Path, Path]] = []
    kept = [name for name in files_in(folder) if name not in names]
    try:
        if kept:
            for name in names:
                moved.append((leftovers.throw_away(folder / name), folder / name))
            manifest.put(_without(entry, names, kept))
        else:
            if folder.exists():
                moved.append((leftovers.throw_away(folder), folder))
            manifest.remove(entry.slug)
    except (OSError, StoreError) as error:
        for place, original in reversed(moved):
            place.rename(original)
        raise StoreError(f"nothing of {entry.slug} was deleted: {error}") from error
    with suppress(OSError):  # all is deleted; empty folders do no harm
        _drop_empty_folders(folder)


def _without(entry: Entry, names: Collection[str], kept: Sequence[str]) -> Entry:
    """The entry once `names` are gone. A filter that covered one of them covers only what is left of it."""
    whole = [*entry.file_filters] if entry.file_filters is not None else ["*"]
    filters = [pattern for pattern in whole if not any(matches(name, [pattern]) for name in names)]
    broken = [pattern for pattern in whole if pattern not in filters]
    filters += [literal(name) for name in kept if matches(name, broken) and not matches(name, filters)]
    files = {name: stamp for name, stamp in entry.files.items() if name not in names}
    return replace(
        entry,
        file_filters=tuple(sorted(filters)),
        files=files,
        file_digests={name: digest for name, digest in entry.file_digests.items() if name not in names},
        size_bytes=sum(stamp.size_bytes for stamp in files.values()),
    )


def _family(path: Path) -> Path:
    return path.with_name(_SHARD.sub(r"-of-\1", path.name))


def _drop_empty_folders(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()


def to_go(folder: Path, filters: Filters) -> list[str]:
    """Names of the files in `folder` that a deletion with `filters` is about. Raises StoreError."""
    return [name for name in files_in(folder) if matches(name, filters)]
