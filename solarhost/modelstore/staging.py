"""`MODELS_DIR/.staging/<slug>`: where a model is put together before it takes its place beside it.

    lock          held by the worker, so that one of an earlier agent can't write between
    parts/        bytes on their way, one file for each digest; a later pull continues them
    tree/         the complete model, as it will stand in MODELS_DIR/<slug>
    retired/      the version that was replaced, for the moment between two renames

It is on the same file system as the models, so that taking place is a rename.
"""

import fcntl
import logging
import os
import shutil
import stat
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from solarhost.files import walk
from solarhost.modelstore.failures import PullError
from solarhost.modelstore.remote import RemoteFile

logger = logging.getLogger(__name__)

STAGING = ".staging"
TRASH = ".trash-"
LOCK_WAIT_S = 10.0


class Staging:
    """The staging folder of one model."""

    def __init__(self, models_folder: Path, slug: str):
        self.path = models_folder / STAGING / slug
        self.tree = self.path / "tree"
        self._parts = self.path / "parts"
        self._retired = self.path / "retired"
        self._place = models_folder / slug

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder and own it.

        Raises:
            PullError: another process does, and did not end within LOCK_WAIT_S.
        """
        self._parts.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + LOCK_WAIT_S
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > deadline:
                        raise PullError(
                            "model_pull_failed", f"another process is pulling into {self.path}"
                        ) from error
                    time.sleep(0.1)
            yield
        finally:
            os.close(descriptor)

    def part(self, file: RemoteFile) -> Path:
        """Where the bytes of this file gather, whatever its name."""
        return self._parts / file.digest.replace(":", "-")

    def here(self, file: RemoteFile) -> int:
        """Bytes of this file that an earlier pull left."""
        try:
            size = self.part(file).lstat().st_size
        except FileNotFoundError:
            return 0
        return size if size <= file.size else 0

    def keep_parts(self, files: Sequence[RemoteFile]) -> None:
        """Remove what an earlier pull left and this one has no use for."""
        wanted = {self.part(file) for file in files}
        for path in self._parts.iterdir():
            if path not in wanted:
                path.unlink()
        shutil.rmtree(self.tree, ignore_errors=True)

    def lay_out(self, downloaded: Sequence[RemoteFile], reused: Collection[str]) -> None:
        """Build the tree of finished parts and of files of the version on disk."""
        for file in downloaded:
            _sync(self.part(file))
        self.tree.mkdir()
        for number, file in enumerate(downloaded):
            target = self._target(file.name)
            again = any(later.digest == file.digest for later in downloaded[number + 1 :])
            if again:  # the same bytes under several names
                os.link(self.part(file), target)
            else:
                self.part(file).rename(target)
        for name in reused:
            os.link(self._place / name, self._target(name), follow_symlinks=False)

    def publish(self, replaced: Collection[str]) -> None:
        """Put the tree in the model's place.

        Files there that are not `replaced`, so that no pull brought them, move along.

        Raises:
            OSError: the place is as it was.
        """
        if self._place.is_symlink() or self._place.is_file():
            raise OSError(f"{self._place} is not a folder; remove it first")
        if not self._place.exists():
            self.tree.rename(self._place)
            return
        for name in files_in(self._place):
            if name not in replaced and not os.path.lexists(self.tree / name):
                os.link(self._place / name, self._target(name), follow_symlinks=False)
        self._place.rename(self._retired)
        try:
            self.tree.rename(self._place)
        except OSError:
            self._retired.rename(self._place)
            raise

    def withdraw(self) -> None:
        """Undo `publish`. Raises OSError."""
        self._place.rename(self.tree)
        if self._retired.exists():
            self._retired.rename(self._place)

    def recover(self) -> None:
        """After a crash: finish or undo what `publish` was at; parts stay for a later pull.

        Raises:
            OSError: the version before could not be put back; it is still in `retired`.
        """
        if self._retired.exists() and not self._place.exists():
            self._retired.rename(self._place)
        shutil.rmtree(self._retired, ignore_errors=True)
        shutil.rmtree(self.tree, ignore_errors=True)

    def remove(self) -> None:
        """Give the disk back."""
        try:
            self.recover()
        except OSError:
            logger.exception("%s holds the only version of a model and is kept", self._retired)
            return
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):  # others are in there
            self.path.parent.rmdir()

    def _target(self, name: str) -> Path:
        target = self.tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        return target


class Leftovers:
    """What is in `.staging` while no pull uses it. The caller sees to it that none begins meanwhile."""

    def __init__(self, models_folder: Path):
        self._models_folder = models_folder
        self._folder = models_folder / STAGING

    def recover(self) -> None:
        """After a crash: settle every model whose version was being replaced."""
        for path in self._entries():
            if not path.name.startswith(TRASH):
                Staging(self._models_folder, path.name).recover()

    def discard(self, older_than_s: float, live: Collection[str]) -> None:
        """Throw away the staging folders that were not written to for so long, but not the `live` ones."""
        for path in self._entries():
            if path.name not in live and time.time() - _newest(path) >= older_than_s:
                self.throw_away(path)

    def throw_away(self, path: Path) -> Path:
        """Move a file or folder of the same file system to the trash, in no time; return its place there."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return path.rename(self._folder / f"{TRASH}{uuid4().hex}")

    def empty_trash(self) -> None:
        """Give its disk back."""
        for path in self._entries():
            if path.name.startswith(TRASH):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        with suppress(OSError):  # something is in there, or it is gone
            self._folder.rmdir()

    def _entries(self) -> list[Path]:
        try:
            return sorted(self._folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []


def _newest(folder: Path) -> float:
    """When something in a staging folder was last written."""
    return max(path.lstat().st_mtime for path in (folder, *folder.glob("parts/*")))


def files_in(folder: Path) -> list[str]:
    """Relative names of the files and links under `folder`, sorted; links are not followed.

    Raises:
        StoreError: not all can be seen now.
    """
    found = []
    for parent, folders, files in walk(folder):
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        found += [str((Path(parent) / name).relative_to(folder)) for name in (*files, *links)]
    return sorted(found)


def regular_size(path: Path) -> int | None:
    """Size of a plain file; None for a link, a folder or nothing."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
