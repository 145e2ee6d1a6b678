"""Is a pulled model still what it was when its content was verified? By size and time, without reading it."""

from collections.abc import Sequence
from pathlib import Path

from solarhost.modelstore.manifest import Entry


def untouched(folder: Path, entry: Entry) -> Sequence[str]:
    """Files of the entry that have the recorded size and modification time, and are no links."""
    names = []
    for name, stamp in entry.files.items():
        path = folder / name
        try:
            status = path.lstat()
        except OSError:
            continue
        if (status.st_size, status.st_mtime_ns) == (stamp.size_bytes, stamp.mtime_ns):
            names.append(name)
    return names


def is_intact(folder: Path, entry: Entry) -> bool:
    """True when every file of the entry is there and untouched.

    An entry that another program wrote may name no files; it counts when its folder holds anything.
    """
    expected = {*entry.files, *entry.file_digests}
    if not expected:
        return folder.is_dir() and any(folder.iterdir())
    return expected <= set(untouched(folder, entry))
