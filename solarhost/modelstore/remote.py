"""What a source of models offers to the worker that downloads one."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

import requests

from solarhost.modelstore.failures import PullError
from solarhost.modelstore.sources import unsafe_path

SIZE_MAX = 1 << 62  # beyond what any disk takes, and a size that everyone can calculate with
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|git:[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    name: str  # relative path, with '/'
    size: int
    digest: str  # `sha256:<hex>` of the bytes, or `git:<hex>`, their id as a git blob


@dataclass(frozen=True, slots=True)
class Listing:
    revision: str
    files: Sequence[RemoteFile]


class Remote(Protocol):
    """One model at its source."""

    def listing(self) -> Listing:
        """All its files. Raises Interrupted or PullError."""

    def open(self, file: RemoteFile, start: int, end: int) -> requests.Response:
        """The streamed, checked answer (200 or 206) for bytes `start` to `end` of the file.

        Raises Interrupted or PullError.
        """


class Checksum:
    """Hashes bytes as they stream by: sha256 always, and the git id where the source states that."""

    def __init__(self, file: RemoteFile):
        self._wanted = file.digest
        self._sha256 = hashlib.sha256()
        self._git = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)

    def update(self, data: bytes) -> None:
        self._sha256.update(data)
        if self._wanted.startswith("git:"):
            self._git.update(data)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def matches(self) -> bool:
        return self._wanted in (f"sha256:{self.sha256}", f"git:{self._git.hexdigest()}")


def check_files(files: Sequence[RemoteFile]) -> None:
    """Make sure that the files of a listing can be laid out in one folder, and not outside it.

    Their types are checked too: a listing is what somebody elsewhere wrote, and a digest becomes a file name.

    Raises:
        PullError: naming the file that breaks a rule.
    """
    seen: set[str] = set()
    for file in files:
        if not isinstance(file.name, str):
            raise PullError("model_pull_failed", f"a file is called {file.name!r}", status=502)
        is_size = isinstance(file.size, int) and 0 <= file.size <= SIZE_MAX
        if not is_size or not _DIGEST.fullmatch(file.digest):
            raise PullError(
                "model_pull_failed",
                f"the source states no usable size or checksum of {file.name!r}",
                status=502,
            )
        if why := unsafe_path(file.name):
            raise PullError("model_pull_failed", f"the file name {file.name!r} {why}", status=502)
        if file.name in seen:
            raise PullError("model_pull_failed", f"two files are called {file.name!r}", status=502)
        seen.add(file.name)
    for file in files:
        for parent in PurePosixPath(file.name).parents:
            if str(parent) in seen:
                raise PullError(
                    "model_pull_failed",
                    f"{str(parent)!r} is a file and the folder of {file.name!r}",
                    status=502,
                )
