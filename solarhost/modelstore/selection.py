"""Which file of a model folder a pattern means."""

import re
import unicodedata
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from solarhost.errors import InvalidRequest
from solarhost.files import is_file, is_folder, walk

_SHARD = re.compile(r"-(\d{5})-of-\d{5}\.gguf$", re.IGNORECASE)
_NAME_MAX = 255  # bytes, of one name on Linux
_LISTED = 10  # names that an error shows


def choose_file(folder: Path, pattern: str) -> Path:
    """The file that `pattern` means in `folder`.

    An absolute path is taken as it is. Otherwise the pattern is tried as a path relative to the
    folder, then as a glob at its root, then as a glob at any depth (`**` matches folders). Of
    several files the largest is taken; the later shards of a split GGUF don't count, since
    llama-server finds them from the first. Names are matched with their case; a glob leaves hidden
    files out, and a symlink that leads out of the folder is never followed.

    Raises:
        InvalidRequest: nothing matches, or the largest ones are equally large; lists the files.
    """
    if not pattern or any(char == "\0" or unicodedata.category(char) == "Cs" for char in pattern):
        raise InvalidRequest("a file pattern can't be empty or hold a NUL character")
    if Path(pattern).is_absolute():
        return Path(pattern)
    root = folder.resolve()
    if not is_folder(root):
        raise InvalidRequest(f"the model folder {folder} does not exist")
    parts = PurePosixPath(pattern).parts
    if any(len(part.encode()) > _NAME_MAX for part in parts):
        raise InvalidRequest(f"the file pattern {pattern[:40]}… is longer than a file name can be")
    exact = root / pattern
    if is_file(exact) and exact.resolve().is_relative_to(root):
        return exact

    files = list(_files(root))
    found = [path for path in files if _matches(path.relative_to(root).parts, parts)]
    if not found:
        found = [path for path in files if _matches(path.relative_to(root).parts, ("**", *parts))]
    if not found:
        raise InvalidRequest(f"no file in {folder} matches {pattern!r}: {_listing(root, files)}")
    return _largest(root, found, pattern)


def choose_weights(folder: Path) -> Path:
    """The GGUF to serve from `folder` when no pattern names one: the largest that is no projector.

    Raises:
        InvalidRequest: there is none, or the largest ones are equally large; lists the files.
    """
    root = folder.resolve()
    if not is_folder(root):
        raise InvalidRequest(f"the model folder {folder} does not exist")
    files = list(_files(root))
    found = [
        path
        for path in files
        if path.suffix.lower() == ".gguf" and not path.name.lower().startswith("mmproj")
    ]
    if not found:
        raise InvalidRequest(f"no GGUF model in {folder}: {_listing(root, files)}")
    return _largest(root, found, "*.gguf")


def _files(root: Path) -> Iterator[Path]:
    """Files at any depth that are not hidden and really lie under `root`. Raises StoreError."""
    for name, folders, names in walk(root):
        folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
        for file in sorted(names):
            path = Path(name, file)
            if not file.startswith(".") and is_file(path) and path.resolve().is_relative_to(root):
                yield path


def _matches(path: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    reached = {0}  # how many parts of the path the pattern up to here can stand for
    for part in pattern:
        if part == "**":
            reached = {*range(min(reached), len(path) + 1)}
        else:
            reached = {count + 1 for count in reached if count < len(path) and fnmatchcase(path[count], part)}
        if not reached:
            return False
    return len(path) in reached


def _largest(root: Path, found: list[Path], pattern: str) -> Path:
    shard = {path: _SHARD.search(path.name) for path in found}
    whole = [path for path in found if not (match := shard[path]) or int(match[1]) == 1]
    if not whole:
        raise InvalidRequest(
            f"{pattern!r} matches a split GGUF whose first part is missing: {_listing(root, found)}"
        )
    sizes = {path: path.stat().st_size for path in whole}
    largest = [path for path in whole if sizes[path] == max(sizes.values())]
    if len(largest) > 1:
        raise InvalidRequest(
            f"{pattern!r} matches {len(largest)} files of the same size, name one: {_listing(root, largest)}"
        )
    return largest[0]


def _listing(root: Path, files: list[Path]) -> str:
    if not files:
        return "there are no files"
    names = ", ".join(path.relative_to(root).as_posix() for path in files[:_LISTED])
    more = len(files) - _LISTED
    return f"{names} and {more} more" if more > 0 else names
