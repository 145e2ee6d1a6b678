"""One step's output: from the container to the log file, memory, and whoever listens."""

import logging
import os
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from solarhost.containers.errors import CallCut
from solarhost.containers.output import Chunk, Output
from solarhost.errors import StoreError
from solarhost.events import Publish, StepLogLines
from solarhost.files import Damaged, read_json, write_json
from solarhost.jobs.lines import Splitter
from solarhost.jobs.logfile import LogExtent
from solarhost.logs.redaction import Redactor
from solarhost.shortages import why
from solarhost.times import now_iso

logger = logging.getLogger(__name__)

MEMORY_LINES = 1000
RECENT_LINES = 100  # that the API shows, also after a restart of the agent
STDERR_LINES = 20  # that explain a failure
SHOWN_CHARS = 2000  # of a line, where it explains or is kept for the API
EVENT_LINES = 1000  # in one event
CHECKPOINT_S = 1.0


class StepLog:
    """Numbers the lines of one step and keeps them. Safe from any thread.

    A checkpoint beside the log file says how far it is: after a restart of the agent the file is cut back
    to it and the container's stored output is taken from there, so that the file has no gap and no line
    twice. What was published since the checkpoint is published again, numbered from there.
    """

    def __init__(
        self,
        job_id: str,
        step_name: str,
        step_index: int,
        path: Path,
        redactor: Redactor,
        publish: Publish,
    ):
        self._where = {"job_id": job_id, "step_name": step_name, "step_index": step_index}
        self._path = path
        self._checkpoint_path = checkpoint_path(path)
        self._publish = publish
        self._lock = Lock()  # guards all below, and the order of the file and of the events
        self._redactor = redactor
        self._splitters = {"stdout": Splitter(redactor), "stderr": Splitter(redactor)}
        self._entries: deque[dict[str, Any]] = deque(maxlen=MEMORY_LINES)
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._seq = 0
        self._size = 0  # bytes of the file that are whole lines of ours
        self._lines = 0  # that these are
        self._unwritten = 0  # lines that found no room on the disk
        self._checked_s = float("-inf")
        self._end: int | None = None  # number of the entry that says that the step is over
        self._file: int | None = None

    @property
    def completed(self) -> bool:
        """Nothing more comes."""
        return self._end is not None

    def open(self) -> None:
        """Make the file, or take it up where an earlier agent left it.

        Raises:
            StoreError: it can't be opened or made, or what was noted of it not be read; nothing was changed.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._lock:
            try:
                descriptor = os.open(self._path, flags, 0o600)
                try:
                    self._resume(os.fstat(descriptor).st_size)
                    os.ftruncate(descriptor, self._size)
                except BaseException:
                    os.close(descriptor)
                    raise
            except OSError as error:
                raise StoreError(f"{self._path} can't be opened: {why(error)}") from error
            self._file = descriptor
            self._checkpoint()

    def close(self) -> None:
        """The agent ends: note how far this is."""
        with self._lock:
            if self._file is not None:
                self._checkpoint()
                os.close(self._file)
                self._file = None

    def rewind(self) -> None:
        """The container's output is about to come again from its start."""
        with self._lock:
            for splitter in self._splitters.values():
                splitter.rewind()

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Take output; unfinished lines wait for their end."""
        with self._lock:
            entries = []
            for stream, timestamp, data in chunks:
                entries += self._numbered(stream, timestamp, self._splitters[stream].feed(data))
            self._keep(entries)
            if time.monotonic() - self._checked_s >= CHECKPOINT_S:
                self._checkpoint()

    def note(self, text: str) -> None:
        """A line of the agent's own, such as the progress of an image's download."""
        with self._lock:
            self._keep(self._numbered("stderr", now_iso(), [text]))

    def complete(self) -> int:
        """The step is over: keep its last lines, and give the number of the entry that ends them.

        That is the same when an earlier agent came so far.
        """
        with self._lock:
            if self._end is None:
                for stream, splitter in self._splitters.items():
                    self._keep(self._numbered(stream, now_iso(), splitter.finish()))
                self._seq += 1
                self._end = self._seq
                self._checkpoint()
            return self._end

    def extent(self) -> LogExtent:
        """How far its file is."""
        with self._lock:
            return LogExtent(self._size, self._lines)

    def recent(self) -> list[dict[str, Any]]:
        """The last lines, for the API."""
        with self._lock:
            return self._recent()

    def stderr_tail(self) -> list[str]:
        """The last lines of stderr that the container printed."""
        with self._lock:
            return list(self._stderr)

    def _numbered(self, stream: str, timestamp: str, texts: list[str]) -> list[dict[str, Any]]:
        first = self._seq + 1
        self._seq += len(texts)
        if stream == "stderr":
            self._stderr.extend(text[:SHOWN_CHARS] for text in texts[-STDERR_LINES:])
        return [
            {**self._where, "stream": stream, "seq": seq, "timestamp": timestamp, "line": text}
            for seq, text in enumerate(texts, first)
        ]

    def _keep(self, entries: list[dict[str, Any]]) -> None:
        if not entries:
            return
        self._write([entry["line"] for entry in entries])
        self._entries.extend(entries)
        for at in range(0, len(entries), EVENT_LINES):
            self._publish(StepLogLines(entries[at : at + EVENT_LINES]))

    def _write(self, lines: list[str]) -> None:
        """Append whole lines; those that a full disk refuses are counted, and the count is written later."""
        if self._file is None:
            return
        if self._unwritten:
            lines = [f"[{self._unwritten} lines could not be written here]", *lines]
        body = "".join(f"{line}\n" for line in lines).encode()
        try:
            written = 0
            while written < len(body):
                written += os.write(self._file, body[written:])
        except OSError as error:
            if not self._unwritten:
                logger.warning("%s can't be written: %s", self._path, error.strerror)
            else:
                lines = lines[1:]
            self._unwritten += len(lines)
            os.ftruncate(self._file, self._size)  # no half line stays
        else:
            self._unwritten = 0
            self._size += len(body)
            self._lines += len(lines)

    def _recent(self) -> list[dict[str, Any]]:
        return [
            {"seq": e["seq"], "stream": e["stream"], "line": e["line"], "timestamp": e["timestamp"]}
            for e in list(self._entries)[-RECENT_LINES:]
        ]

    def _checkpoint(self) -> None:
        if self._file is None:  # what an earlier agent noted was not read, so it stays
            return
        self._checked_s = time.monotonic()
        data = {
            "size": self._size,
            "lines": self._lines,
            "seq": self._seq,
            "end": self._end,
            "stderr_tail": list(self._stderr),
            "recent": [{**entry, "line": entry["line"][:SHOWN_CHARS]} for entry in self._recent()],
            "streams": {
                stream: {"lines": splitter.lines, "offset": splitter.offset}
                for stream, splitter in self._splitters.items()
            },
        }
        try:
            write_json(self._checkpoint_path, data)
        except StoreError as error:  # an older one does as well: more is read again
            logger.warning("%s", error)

    def _resume(self, file_size: int) -> None:
        """Take over what the checkpoint says; without one that fits the file, begin anew."""
        try:
            data = read_json(self._checkpoint_path)
        except Damaged as error:
            logger.warning("%s: its output is read from the start", error)
            return
        if (
            data is None or data["size"] > file_size
        ):  # the machine went down before the file's bytes were safe
            return
        self._size, self._lines = data["size"], data["lines"]
        self._seq, self._end = data["seq"], data["end"]
        self._stderr.extend(data["stderr_tail"])
        self._entries.extend({**self._where, **entry} for entry in data["recent"])
        self._splitters = {
            stream: Splitter(self._redactor, **position) for stream, position in data["streams"].items()
        }


class LogReader(Thread):
    """Reads a container's output into its step's log; ends with the output, or when it is cut."""

    def __init__(self, name: str, output: Output, log: StepLog):
        super().__init__(name=name, daemon=True)
        self._output = output
        self._log = log
        self.batches = 0  # read so far; whoever waits for the end sees by it that there is progress

    def run(self) -> None:
        try:
            for chunks in self._output:
                self.batches += 1
                try:
                    self._log.add(chunks)
                except Exception:  # the container's output is drained whatever happens here
                    logger.exception("%s: %d chunks lost", self.name, len(chunks))
        except CallCut:
            logger.debug("%s was cut", self.name)
        finally:
            self._output.close()

    def cut(self) -> None:
        """Stop reading now; whoever calls joins it."""
        self._output.cut()


def checkpoint_path(log_path: Path) -> Path:
    """Beside the log file; no step's name starts with a dot."""
    return log_path.with_name(f".{log_path.name}.json")


def stored_recent(log_path: Path) -> list[dict[str, Any]]:
    """The last lines of a step that is not running, as its checkpoint keeps them. Raises StoreError."""
    return list(_stored(log_path).get("recent", []))


def stored_extent(log_path: Path) -> LogExtent:
    """How far the file of a step is that is not running. Raises StoreError."""
    data = _stored(log_path)
    return LogExtent(data["size"], data["lines"]) if data else LogExtent()


def _stored(log_path: Path) -> dict[str, Any]:
    try:
        return read_json(checkpoint_path(log_path)) or {}
    except Damaged:
        return {}
