"""The thread that follows one child's log file."""

import logging
import os
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Protocol

from solarhost.logs.growth import SAFETY_S, GrowthWatch
from solarhost.logs.ledger import MAX_CUTS, Checkpoint
from solarhost.logs.redaction import Redactor
from solarhost.logs.splitter import LineSplitter

logger = logging.getLogger(__name__)

BLOCK = 128 * 1024  # larger ones cost more a line: they fall out of the processor's cache
GATHER_S = 0.008  # after reading all there is: one wake for many lines, and the child keeps its core
NOTE_S = 1.0  # how often a checkpoint is written while lines come
PROGRESS_S = 1.0  # how often an unfinished progress line is shown
RETRY_S = 1.0  # pause after the file could not be opened or read
LAST_TRIES_S = 4.0  # how long that is tried once nothing more will come
LAST_RETRY_S = 0.1


class Reader(Protocol):
    """Who gets what a tail reads. Called by the tail's thread only; never raises."""

    def took(self, lines: Sequence[str], raw_bytes: int) -> None:
        """New lines, in order."""

    def note(self, offset: int, cuts: Sequence[int], shown_next: int = 0) -> None:
        """All before `offset` was given out; keep that, together with `shown_next` lines about to be."""

    def reached_end(self) -> None:
        """All that the file holds for now was handed on; called each time."""

    def grew(self) -> None:
        """The file is longer; called now and then, after `note`, for its size cap."""

    def failed(self, error: OSError) -> None:
        """The file can't be read; it is tried again."""


class LogTail(Thread):
    """Follows one child's log file and hands on each batch of whole lines.

    The child appends to the file itself, so nothing here can slow or stop it.
    Ends after `finish` or `stop`, once the file has been read to its end.
    """

    def __init__(
        self,
        instance_id: str,
        path: Path,
        start: Checkpoint,
        redactor: Redactor,
        reader: Reader,
        grew_every: int,
    ):
        super().__init__(name=f"tail-{instance_id}", daemon=True)
        self.path = path
        self._reader = reader
        self._splitter = LineSplitter(redactor)
        self._offset = start.offset  # up to here the file was read
        self._cuts = list(start.cuts)
        self._grew_every = grew_every
        self._grew_at = start.offset
        self._noted_at = self._shown_at = -PROGRESS_S
        self._unnoted = False
        self._ending = Event()
        self._lock = Lock()  # guards the two fields below
        self._watch: GrowthWatch | None = None
        self._flush = False

    def finish(self) -> None:
        """The child is gone: read what is left, an unfinished line too, then end."""
        self._end(flush=True)

    def stop(self) -> None:
        """The agent ends before the child: read what is there, keep the place, then end."""
        self._end(flush=False)

    def run(self) -> None:
        give_up_at: float | None = None
        while not self._follow():
            if self._ending.wait(RETRY_S):
                give_up_at = give_up_at or time.monotonic() + LAST_TRIES_S
                if time.monotonic() >= give_up_at:
                    return
                time.sleep(LAST_RETRY_S)

    def _follow(self) -> bool:
        """Read until the end; False when that failed and may work later."""
        try:
            with (
                open(self.path, "rb", buffering=0) as file,
                closing(GrowthWatch(file.fileno(), self.path)) as watch,
            ):
                with self._lock:
                    self._watch = watch
                while not self._turn(file.fileno(), watch):
                    pass
        except FileNotFoundError as error:
            self._reader.failed(error)
        except OSError as error:
            self._reader.failed(error)
            return False
        return True

    def _end(self, flush: bool) -> None:
        with self._lock:
            self._flush = flush
            self._ending.set()
            if self._watch:
                self._watch.wake()

    def _turn(self, descriptor: int, watch: GrowthWatch) -> bool:
        """Read a block or wait for one; True at the end."""
        ending = self._ending.is_set()  # before the read: what was written by then will be read
        size = self._read(descriptor)
        if size == BLOCK:
            return False
        self._reader.reached_end()
        self._show_progress()
        if ending:
            self._finish()
            return True
        if self._ending.is_set():  # it may have been set before there was a watch to wake
            return False
        if size:
            watch.pause(GATHER_S)
        else:
            watch.wait(self._offset, self._until_due())
        return False

    def _read(self, descriptor: int) -> int:
        """Take one block of the file; return its size, 0 at the end."""
        data = os.pread(descriptor, BLOCK, self._offset)
        if not data:
            if os.fstat(descriptor).st_size < self._offset:
                logger.warning("%s was cut short by someone, reading it from its beginning", self.path)
                self._offset = self._grew_at = 0
                self._take(self._splitter.flush(), 0)
        else:
            self._offset += len(data)
            self._take(self._splitter.feed(data), len(data))
            self._unnoted = True
            if self._offset - self._grew_at >= self._grew_every:
                self._grew_at = self._offset
                self._note()
                self._reader.grew()
        if self._unnoted and time.monotonic() - self._noted_at >= NOTE_S:
            self._note()
        return len(data)

    @property
    def _line_start(self) -> int:
        return self._offset - self._splitter.held

    def _take(self, lines: Sequence[str], raw_bytes: int) -> None:
        if lines:
            self._reader.took(lines, raw_bytes)

    def _show_progress(self) -> None:
        """Give out the state of an unfinished progress line, at most once in `PROGRESS_S`."""
        if not self._splitter.has_progress or time.monotonic() - self._shown_at < PROGRESS_S:
            return
        lines = self._splitter.take_progress()
        self._shown_at = time.monotonic()
        self._cuts = [*self._cuts[1 - MAX_CUTS :], self._line_start]
        self._note(shown_next=len(lines))
        self._take(lines, 0)

    def _note(self, shown_next: int = 0) -> None:
        self._reader.note(self._line_start, self._cuts, shown_next)
        self._noted_at = time.monotonic()
        self._unnoted = False

    def _finish(self) -> None:
        if self._flush:
            self._take(self._splitter.flush(), 0)
        self._note()

    def _until_due(self) -> float:
        """Seconds until there is something to do without new bytes."""
        due = time.monotonic() + SAFETY_S
        if self._unnoted:
            due = min(due, self._noted_at + NOTE_S)
        if self._splitter.has_progress:
            due = min(due, self._shown_at + PROGRESS_S)
        return due - time.monotonic()
