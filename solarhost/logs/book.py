"""All instances' logs: files, numbered lines in memory, streams, retention."""

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from solarhost.errors import NotFound, StoreError
from solarhost.events import Publish
from solarhost.logs import disk, names
from solarhost.logs.catchup import catch_up
from solarhost.logs.channel import Channel, Counters, LogCursor
from solarhost.logs.intake import Intake, OnLines, read_problem, size_problem, trim
from solarhost.logs.ledger import SUFFIX, Checkpoint, Ledger, line_problem
from solarhost.logs.lines import LogLine
from solarhost.logs.names import LogFile
from solarhost.logs.redaction import Redactor
from solarhost.logs.retention import expendable
from solarhost.logs.tail import LogTail
from solarhost.problems import Problems
from solarhost.shortages import why
from solarhost.threads import begin, join_by

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogStats:
    """Totals since the agent started, for `/metrics`."""

    lines: int
    bytes: int
    dropped: int  # lines that a stream was too slow for
    followed: int  # files followed right now


@dataclass(slots=True)
class _Instance:
    """What is kept in memory of one instance."""

    channel: Channel
    ledger: Ledger
    tail: LogTail | None = None
    run_seq: int = 0  # number of the first line of its latest run
    caught_up: bool = False  # every line that an earlier agent showed has its number


class LogBook:
    """Everybody's log lines. Safe from any thread.

    Lock order: the book's, then a channel's or a ledger's; callbacks are called under none of them.
    """

    def __init__(
        self,
        *,
        folder: Path,
        buffer_size: int,
        retained: int,
        retention_s: float,
        file_max_bytes: int,
        secrets: Sequence[str],
        publish: Publish,
        problems: Problems,
        exists: Callable[[str], bool],
    ):
        """Keep files in `folder`, the newest `buffer_size` lines of each instance in memory.

        Args:
            retained: how many ended instances keep their lines in memory.
            retention_s: age after which a file may go.
            file_max_bytes: disk that one file may take.
            secrets: values that show as `***`.
            publish: gets an `events.LogLines` for each batch.
            exists: tells whether there is an instance of that id, from before its first run until it is
                deleted; `forget` comes after that.
        """
        self._folder = folder
        self._buffer_size = buffer_size
        self._retained = retained
        self._retention_s = retention_s
        self._file_max_bytes = file_max_bytes
        self._redactor = Redactor(secrets)
        self._publish = publish
        self._problems = problems
        self._exists = exists
        self._counters = Counters()
        self._lock = Lock()  # guards the two below
        self._instances: dict[str, _Instance] = {}
        self._retired: OrderedDict[str, None] = OrderedDict()  # ended ones with lines, oldest first

    def begin_run(self, instance_id: str, alias: str, run: int) -> Path:
        """Make a fresh log file (0600) for one run; the child appends to it.

        Raises:
            StoreError: the file could not be made, or what was noted of earlier runs not be read.
        """
        started = int(time.time())
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            files = names.log_files(self._folder, instance_id)
            instance = self._instance(instance_id)
            self._catch_up(instance, files)
            if files:  # two runs may begin in one second
                started = max(started, files[-1].started + 1)
            path = self._folder / names.log_name(alias, instance_id, started)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise StoreError(
                f"no log file for instance {instance_id} could be made in {self._folder}: {why(error)}"
            ) from error
        gone = expendable(files, oldest=0.0, needed=self._needed({instance_id}))
        self._remove(gone)
        instance.channel.settle()
        instance.run_seq = instance.channel.next_seq
        kept = {file.path.name for file in files if file not in gone}
        instance.ledger.begin(run, path.name, instance.channel.next_seq, kept)
        return path

    def follow(
        self, instance_id: str, path: Path, run: int, on_lines: OnLines, secrets: Iterable[str] = ()
    ) -> LogTail:
        """Start the thread that reads `path`, from its beginning or from where an earlier agent stopped.

        Args:
            on_lines: gets each batch of redacted lines, in order, in the tail's thread.
            secrets: further values to redact from this run on, such as the instance's own key.

        Raises:
            NoThread: the system allows no further one.
            StoreError: what was noted of its lines can't be read now.
        """
        instance = self._instance(instance_id)
        instance.ledger.mask(secrets)
        redactor = self._redactor.also(instance.ledger.secrets)
        start = instance.ledger.checkpoint
        if start.file != path.name:  # nothing is known of this file
            files = names.log_files(self._folder, instance_id)
            self._catch_up(instance, [file for file in files if file.path.name != path.name])
            kept = {file.path.name for file in files}
            instance.ledger.begin(run, path.name, instance.channel.next_seq, kept)
            start = instance.ledger.checkpoint
        elif start.offset:
            self._refill(instance.channel, path, start, redactor)
        instance.caught_up = True
        self._problems.clear(read_problem(instance_id))  # that of an earlier run
        intake = Intake(
            instance_id,
            path,
            instance.channel,
            instance.ledger,
            on_lines,
            self._publish,
            self._problems,
            self._file_max_bytes,
        )
        tail = LogTail(instance_id, path, start, redactor, intake, self._file_max_bytes // 8)
        begin(tail)
        with self._lock:
            instance.tail = tail
            self._retired.pop(instance_id, None)
        return tail

    def read(
        self, instance_id: str, *, tail: int | None = None, since: int | None = None, run: int | None = None
    ) -> list[LogLine]:
        """Lines from memory; with none there, or of one `run`, from the file, numbered from 0.

        Args:
            tail: the last so many; of a file, `buffer_size` when not given.
            since: only those with a higher number.

        Raises:
            NotFound: neither memory nor disk has lines of this instance or run.
            StoreError: there is a file, and it can't be read.
        """
        if not names.is_id(instance_id):
            raise NotFound(f"no instance {instance_id}")
        with self._lock:
            instance = self._instances.get(instance_id)
        if run is None and instance:
            lines = instance.channel.read(since, tail)
            if lines is not None:
                return lines
            if instance.tail and instance.tail.is_alive():  # its first lines are about to come
                return []
        try:
            path = self._file(instance_id, run)
            redactor = self._redactor.also(self._ledger(instance_id).secrets)
            found, changed = disk.read_tail(path, self._buffer_size if tail is None else tail, redactor)
        except FileNotFoundError as error:
            raise NotFound(f"the log file of instance {instance_id} is gone") from error
        except OSError as error:
            raise StoreError(f"no log file of instance {instance_id} can be read: {why(error)}") from error
        timestamp = datetime.fromtimestamp(changed, UTC).isoformat()
        numbered = [LogLine(seq, timestamp, line) for seq, line in enumerate(found)]
        return numbered if since is None else numbered[max(0, since + 1) :]

    def last_lines(self, instance_id: str, count: int) -> list[str]:
        """The newest lines of its latest run, in memory or on disk; none when there are none to be had."""
        with self._lock:
            instance = self._instances.get(instance_id)
        if instance and (kept := instance.channel.read(instance.run_seq - 1, count)) is not None:
            return [line.line for line in kept]
        try:
            return [line.line for line in self.read(instance_id, tail=count)]
        except (NotFound, StoreError):
            return []

    def subscribe(self, instance_id: str, *, since: int | None = None, tail: int | None = None) -> LogCursor:
        """A place in the lines: after number `since`, or `tail` lines back, else at the oldest in memory.

        Raises:
            NotFound: there is no such instance.
            StoreError: what was noted of its lines can't be read now.
        """
        if names.is_id(instance_id) and self._exists(instance_id):
            cursor = LogCursor(self._instance(instance_id).channel, since, tail)
            if self._exists(instance_id):
                return cursor
            self.forget(instance_id)  # deleted right now: nobody else would end this stream
        raise NotFound(f"no instance {instance_id}")

    def retire(self, instance_id: str, *, failed: bool = False) -> None:
        """Its child ended, `failed` or as asked. The newest `retained` of the ended keep their lines."""
        with self._lock:
            instance = self._instances.get(instance_id)
            if instance is None:
                return
            instance.tail = None
            self._retired[instance_id] = None
            self._retired.move_to_end(instance_id)
            while len(self._retired) > self._retained:
                oldest, _ = self._retired.popitem(last=False)
                self._instances[oldest].channel.clear()
        instance.ledger.ended(failed)

    def forget(self, instance_id: str) -> None:
        """The instance was deleted: its lines leave memory and its streams end; its files stay."""
        with self._lock:
            instance = self._instances.pop(instance_id, None)
            self._retired.pop(instance_id, None)
        if instance:
            if instance.tail:
                instance.tail.finish()
            instance.channel.close()
        for problem in (read_problem(instance_id), size_problem(instance_id), line_problem(instance_id)):
            self._problems.clear(problem)

    def sweep(self, live: Collection[str]) -> None:
        """Remove what is past its time, and cap what nobody reads (a tail sees to its own file).

        Args:
            live: ids of the instances that exist.
        """
        oldest = time.time() - self._retention_s
        files = names.log_files(self._folder)
        needed = self._needed({file.instance_id for file in files})
        gone = expendable(files, oldest=oldest, needed=needed)
        self._remove(gone)
        kept = set(files) - set(gone)
        for file in kept:
            if file.path.name not in needed:
                noted = self._ledger(file.instance_id).noted(file.path.name)
                trim(file.path, file.instance_id, self._file_max_bytes, noted, self._problems)
        in_use = {*live, *(file.instance_id for file in kept)}
        for ledger in self._folder.glob(f"*{SUFFIX}"):
            with suppress(FileNotFoundError):
                if ledger.name.removesuffix(SUFFIX) not in in_use and ledger.stat().st_mtime < oldest:
                    ledger.unlink()

    def save_again(self) -> None:
        """Write the notes that could not be written; called now and then."""
        with self._lock:
            ledgers = [instance.ledger for instance in self._instances.values()]
        for ledger in ledgers:
            ledger.save_again()

    def stats(self) -> LogStats:
        with self._lock:
            tails = [instance.tail for instance in self._instances.values()]
        followed = sum(1 for tail in tails if tail and tail.is_alive())
        return LogStats(self._counters.lines, self._counters.bytes, self._counters.dropped, followed)

    def close(self, deadline: float) -> None:
        """End the streams, then the threads, each after reading what is there and noting its place.

        Args:
            deadline: a `time.monotonic()` value.
        """
        with self._lock:
            instances = list(self._instances.values())
        tails = [instance.tail for instance in instances if instance.tail]
        for tail in tails:
            tail.stop()
        for late in join_by(tails, deadline):
            logger.warning("%s is still reading", late.name)
        for instance in instances:
            instance.channel.close()

    def _instance(self, instance_id: str) -> _Instance:
        """What is kept of an instance, made when there is nothing yet. Raises StoreError."""
        if not names.is_id(instance_id):
            raise ValueError(f"{instance_id!r} can't be part of a file name")
        with self._lock:
            instance = self._instances.get(instance_id)
            if instance is None:
                ledger = Ledger(self._folder, instance_id, self._problems)
                channel = Channel(ledger.checkpoint.seq, self._buffer_size, self._counters)
                instance = self._instances[instance_id] = _Instance(channel, ledger)
            return instance

    def _file(self, instance_id: str, run: int | None) -> Path:
        """The log file of one run, or the newest of this instance.

        Raises:
            NotFound: there is none.
            StoreError: which one it is can't be read now.
        """
        files = names.log_files(self._folder, instance_id)
        if run is not None:
            name = self._ledger(instance_id).file_of(run)
            files = [file for file in files if file.path.name == name]
        if not files:
            of_run = "" if run is None else f" of run {run}"
            raise NotFound(f"no log lines{of_run} of instance {instance_id}")
        return files[-1].path

    def _needed(self, instance_ids: Iterable[str]) -> set[str]:
        """Names of files that are being read, or that are the first of a row of failures."""
        with self._lock:
            tails = [instance.tail for instance in self._instances.values()]
        followed = {tail.path.name for tail in tails if tail and tail.is_alive()}
        return followed | {first for name in instance_ids if (first := self._ledger(name).first_failed)}

    def _ledger(self, instance_id: str) -> Ledger:
        """The one in use, or what an earlier agent left. Raises StoreError."""
        with self._lock:
            instance = self._instances.get(instance_id)
        return instance.ledger if instance else Ledger(self._folder, instance_id, self._problems)

    def _remove(self, files: Iterable[LogFile]) -> None:
        for file in files:
            try:
                file.path.unlink(missing_ok=True)
            except OSError as error:
                logger.warning("%s could not be removed: %s", file.path, error.strerror)
            else:
                self._problems.clear(size_problem(file.instance_id))

    def _catch_up(self, instance: _Instance, files: Sequence[LogFile]) -> None:
        """Number what an earlier agent may have shown of `files`, whose runs are over, and not noted.

        Raises:
            StoreError: it is due the next time.
        """
        if not instance.caught_up:
            ledger = instance.ledger
            catch_up(instance.channel, ledger.checkpoint, files, self._redactor.also(ledger.secrets))
            instance.caught_up = True

    def _refill(self, channel: Channel, path: Path, start: Checkpoint, redactor: Redactor) -> None:
        """Put the lines that an earlier agent numbered back into memory."""
        try:
            lines, changed = disk.read_tail(path, self._buffer_size, redactor, start.offset, start.cuts)
        except OSError:
            return  # the tail meets it too, and reports it
        timestamp = datetime.fromtimestamp(changed, UTC).isoformat()
        channel.refill(lines, timestamp, sum(map(len, lines)))
