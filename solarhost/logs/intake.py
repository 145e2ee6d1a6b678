"""Where a tail's lines go: numbered into memory, to the world, to the backend's parser."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from solarhost import times
from solarhost.events import LogLines, Publish
from solarhost.logs import disk
from solarhost.logs.channel import Channel
from solarhost.logs.ledger import Checkpoint, Ledger
from solarhost.problems import Problems

logger = logging.getLogger(__name__)

OnLines = Callable[[Sequence[str]], None]


def read_problem(instance_id: str) -> str:
    """The key in `Problems` of a file that can't be read."""
    return f"log-read-{instance_id}"


def size_problem(instance_id: str) -> str:
    """The key in `Problems` of a file that can't be kept small."""
    return f"log-size-{instance_id}"


class Intake:
    """The `Reader` of one run's tail. Used by the tail's thread."""

    def __init__(
        self,
        instance_id: str,
        path: Path,
        channel: Channel,
        ledger: Ledger,
        on_lines: OnLines,
        publish: Publish,
        problems: Problems,
        file_max_bytes: int,
    ):
        self._instance_id = instance_id
        self._path = path
        self._channel = channel
        self._ledger = ledger
        self._on_lines = on_lines
        self._publish = publish
        self._problems = problems
        self._file_max_bytes = file_max_bytes
        self._failing = False

    def took(self, lines: Sequence[str], raw_bytes: int) -> None:
        if self._failing:
            self._failing = False
            self._problems.clear(read_problem(self._instance_id))
        timestamp = times.now_iso()
        first_seq = self._channel.append(lines, timestamp, raw_bytes)
        self._publish(LogLines(self._instance_id, first_seq, timestamp, lines))
        try:
            self._on_lines(lines)
        except Exception:  # a parser that stumbles over a line must not end the log
            logger.exception("instance %s: %d log lines were not understood", self._instance_id, len(lines))

    def note(self, offset: int, cuts: Sequence[int], shown_next: int = 0) -> None:
        seq = self._channel.next_seq + shown_next
        self._ledger.advance(Checkpoint(self._path.name, offset, seq, tuple(cuts)))

    def reached_end(self) -> None:
        self._channel.settle()

    def grew(self) -> None:
        noted = self._ledger.noted(self._path.name)
        trim(self._path, self._instance_id, self._file_max_bytes, noted, self._problems)

    def failed(self, error: OSError) -> None:
        self._failing = True
        self._problems.report(
            read_problem(self._instance_id),
            f"{self._path} can't be read, so its lines are not shown: {error.strerror}",
        )


def trim(path: Path, instance_id: str, max_bytes: int, noted: int, problems: Problems) -> None:
    """Keep one file small; where the file system can't, that is a problem.

    What is not `noted` stays: a next agent has to read it again to give its lines the same numbers.
    """
    problem = size_problem(instance_id)
    try:
        disk.trim(path, max_bytes, noted)
    except OSError as error:
        problems.report(problem, f"{path} can't be kept under {max_bytes >> 20} MiB: {error.strerror}")
    else:
        problems.clear(problem)
