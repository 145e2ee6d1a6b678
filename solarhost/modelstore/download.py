"""One file on its way into a part file: continued where an earlier run ended, hashed while it streams."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import requests
import urllib3.exceptions

from solarhost.modelstore.failures import DigestMismatch, Interrupted
from solarhost.modelstore.remote import Checksum, Remote, RemoteFile
from solarhost.modelstore.transport import Retries, broken

CHUNK_BYTES = 1 << 18
SEGMENT_BYTES = 16 << 30  # of one request: the hub's delivery network ends answers beyond 50 GB


class Download:
    """Fetches one file. Memory does not depend on its size."""

    def __init__(
        self,
        remote: Remote,
        file: RemoteFile,
        path: Path,
        *,
        stall_s: float,
        retries: Retries,
        on_bytes: Callable[[int], None],
    ):
        self._remote = remote
        self._wanted = file
        self._path = path
        self._stall_s = stall_s
        self._retries = retries
        self._on_bytes = on_bytes  # gets how many bytes of the file are here and hashed
        self._checksum = Checksum(file)
        self._done = 0
        self._highest = 0  # of `_done`; beyond it there is progress
        self._answers = 0  # how many answers (and earlier runs) the bytes came from

    def run(self) -> str:
        """Bring the file here in full and return its sha256 (hex).

        Raises:
            PullError: the source refused, was silent for too long, or sent other bytes than it announced.
            OSError: the file could not be written.
        """
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with open(descriptor, "r+b", buffering=0) as part:
            self._take_up(part)
            self._complete(part)
            if not self._checksum.matches and self._answers > 1:  # the seams may be to blame
                self._start_over(part)
                self._complete(part)
            if not self._checksum.matches:
                raise DigestMismatch(
                    f"{self._wanted.name}: the bytes that came do not have {self._wanted.digest}"
                )
        return self._checksum.sha256

    def _take_up(self, part: BinaryIO) -> None:
        """Hash what an earlier run left, so that it is trusted no more than fresh bytes."""
        if os.fstat(part.fileno()).st_size > self._wanted.size:
            part.truncate(0)
        while data := part.read(CHUNK_BYTES):
            self._advance(data)
        self._answers = 1 if self._done else 0

    def _start_over(self, part: BinaryIO) -> None:
        part.seek(0)
        part.truncate(0)
        self._checksum = Checksum(self._wanted)
        self._done = self._answers = 0

    def _complete(self, part: BinaryIO) -> None:
        while self._done < self._wanted.size:
            try:
                self._stream(part)
            except Interrupted as error:
                self._retries.wait(error)

    def _stream(self, part: BinaryIO) -> None:
        end = min(self._done + SEGMENT_BYTES, self._wanted.size)
        with self._remote.open(self._wanted, self._done, end) as response:
            if response.status_code == 200 and self._done:  # it does not do ranges
                self._start_over(part)
            if response.status_code == 200:
                end = self._wanted.size
            self._check_extent(response, end)
            self._answers += 1
            while self._done < end:
                try:
                    data = response.raw.read(min(CHUNK_BYTES, end - self._done), decode_content=False)
                except (urllib3.exceptions.HTTPError, requests.RequestException) as error:
                    raise broken(error, self._stall_s) from error
                if not data:
                    raise Interrupted(f"the answer ended {end - self._done} bytes early")
                _write(part, data)
                self._advance(data)
                if self._done > self._highest:
                    self._highest = self._done
                    self._retries.progressed()

    def _advance(self, data: bytes) -> None:
        self._checksum.update(data)
        self._done += len(data)
        self._on_bytes(self._done)

    def _check_extent(self, response: requests.Response, end: int) -> None:
        """Refuse an answer that is not about the bytes that were asked for, before any is written."""
        length = response.headers.get("Content-Length", str(end - self._done))
        if response.status_code == 206:
            extent = response.headers.get("Content-Range", "")
            if extent.split("/")[0] != f"bytes {self._done}-{end - 1}":
                raise Interrupted(f"asked for bytes {self._done}-{end - 1}, got {extent!r}")
        elif length != str(end - self._done):
            raise Interrupted(f"the answer is of {length} bytes, {end - self._done} are due")


def _write(part: BinaryIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:  # an unbuffered write may take only some
        rest = rest[part.write(rest) :]
