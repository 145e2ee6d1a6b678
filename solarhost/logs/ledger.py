"""What of one instance's numbering outlives the agent: a small file beside its logs."""

import logging
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from solarhost.errors import StoreError
from solarhost.files import Damaged, read_json, write_json
from solarhost.problems import Problems

logger = logging.getLogger(__name__)

SUFFIX = ".lines.json"
MAX_CUTS = 100
MAX_SECRETS = 50


def line_problem(instance_id: str) -> str:
    """The key in `Problems` of a place that can't be noted."""
    return f"log-lines-{instance_id}"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Every line before `offset` of the file `file` has a number, the last one `seq - 1`."""

    file: str
    offset: int
    seq: int
    cuts: tuple[int, ...] = field(default=())  # offsets where a progress line was given out unfinished


class Ledger:
    """One instance's checkpoint, its runs' files and keys, and its first failed run. Safe from any thread.

    Reading on from an old checkpoint gives the same lines the same numbers, so it need not be written
    with each line; only a progress line, whose moment is a matter of time, is noted before it is shown.
    For the same reason a write that fails is a problem to report, never an error.
    """

    def __init__(self, folder: Path, instance_id: str, problems: Problems):
        """Load what an earlier agent wrote; a file that makes no sense is logged and begun anew.

        Raises:
            StoreError: it can't be read now.
        """
        self.path = folder / f"{instance_id}{SUFFIX}"
        self._problems = problems
        self._problem = line_problem(instance_id)
        self._lock = Lock()  # guards the fields and the file
        self._runs: dict[int, str] = {}
        self._first_failed: int | None = None
        self._secrets: list[str] = []
        self._checkpoint = Checkpoint("", 0, 0)
        self._saved = self._checkpoint  # the one on disk
        self._unsaved = False  # the last write failed
        try:
            self._load(read_json(self.path))
            self._saved = self._checkpoint
        except Damaged as error:
            logger.warning("%s; the lines of this instance are numbered anew", error)

    @property
    def checkpoint(self) -> Checkpoint:
        return self._checkpoint

    @property
    def first_failed(self) -> str | None:
        """The log file of the first of the latest failures in a row."""
        with self._lock:
            return None if self._first_failed is None else self._runs.get(self._first_failed)

    @property
    def secrets(self) -> list[str]:
        """What has to be masked in its files, which may outlive its config: the keys of its runs."""
        with self._lock:
            return list(self._secrets)

    def file_of(self, run: int) -> str | None:
        with self._lock:
            return self._runs.get(run)

    def noted(self, file: str) -> int:
        """Up to which offset a next agent will not read `file` again: what precedes it may go."""
        with self._lock:
            if file == self._saved.file:
                return self._saved.offset
            return 0 if file == self._checkpoint.file else sys.maxsize

    def mask(self, secrets: Iterable[str]) -> None:
        """Keep these for whoever reads the files later."""
        with self._lock:
            new = [secret for secret in secrets if secret not in self._secrets]
            if new:
                self._secrets = [*self._secrets, *new][-MAX_SECRETS:]
                self._save()

    def begin(self, run: int, file: str, seq: int, on_disk: Collection[str]) -> None:
        """A run begins in a fresh file; of the runs before it, keep those whose files are `on_disk`."""
        with self._lock:
            self._runs = {number: name for number, name in self._runs.items() if name in on_disk}
            self._runs.pop(run, None)  # the newest comes last
            self._runs[run] = file
            self._checkpoint = Checkpoint(file, 0, seq)
            self._save()

    def advance(self, checkpoint: Checkpoint) -> None:
        """Lines were numbered. A late word about an earlier run's file is ignored."""
        with self._lock:
            if checkpoint.file == self._checkpoint.file:
                self._checkpoint = checkpoint
                self._save()

    def ended(self, failed: bool) -> None:
        """The newest run is over."""
        with self._lock:
            first = self._first_failed
            if not failed:
                self._first_failed = None
            elif first is None and self._runs:
                self._first_failed = next(reversed(self._runs))
            if first != self._first_failed:
                self._save()

    def save_again(self) -> None:
        """What could not be written is tried once more."""
        with self._lock:
            if self._unsaved:
                self._save()

    def _save(self) -> None:
        point = self._checkpoint
        data = {
            "file": point.file,
            "offset": point.offset,
            "seq": point.seq,
            "cuts": point.cuts[-MAX_CUTS:],
            "runs": {str(run): file for run, file in self._runs.items()},
            "first_failed": self._first_failed,
            "secrets": self._secrets,
        }
        try:
            write_json(self.path, data, durable=False)
        except StoreError as error:
            self._unsaved = True
            self._problems.report(self._problem, f"{error}; a restart of the agent would repeat log lines")
        else:
            self._saved, self._unsaved = point, False
            self._problems.clear(self._problem)

    def _load(self, data: Any) -> None:
        if data is None:
            return
        try:
            cuts = tuple(int(cut) for cut in data["cuts"])
            self._checkpoint = Checkpoint(str(data["file"]), int(data["offset"]), int(data["seq"]), cuts)
            self._runs = {int(run): str(file) for run, file in data["runs"].items()}
            first = data["first_failed"]
            self._first_failed = None if first is None else int(first)
            self._secrets = [str(secret) for secret in data.get("secrets", [])]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise Damaged(self.path, f"not a line count: {error!r}") from error
