"""The newest lines of one instance in memory, and the streams that follow them.

Lines are stored in chunks as they were read, so that taking in a hundred thousand lines costs no more
than taking in one block of bytes.
"""

import time
from collections import deque
from collections.abc import Sequence
from threading import Condition, Lock

from solarhost.logs.frames import Chunk, LogBatch
from solarhost.logs.lines import LogLine

# Raw log in memory for one instance, however long its lines are.
LEAST_KEPT_BYTES = 8 * 1024 * 1024
KEPT_BYTES_PER_LINE = 1024


class Counters:
    """Totals since the agent started. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards the fields
        self.lines = 0
        self.bytes = 0
        self.dropped = 0

    def took(self, lines: int, size: int) -> None:
        with self._lock:
            self.lines += lines
            self.bytes += size

    def lost(self, lines: int) -> None:
        with self._lock:
            self.dropped += lines


class Channel:
    """Numbers the lines of one instance and keeps the newest `capacity`. Safe from any thread."""

    def __init__(self, next_seq: int, capacity: int, counters: Counters):
        self._capacity = capacity
        self._max_bytes = max(LEAST_KEPT_BYTES, capacity * KEPT_BYTES_PER_LINE)
        self._counters = counters
        self._changed = Condition(Lock())  # guards the fields below
        self._chunks: deque[Chunk] = deque()
        self._next_seq = next_seq
        self._first_seq = next_seq  # of the oldest line that is kept
        self._raw_bytes = 0
        self._listeners = 0
        self._closed = False
        self._settled = False

    @property
    def next_seq(self) -> int:
        """The number that the next line will get."""
        return self._next_seq

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def listeners(self) -> int:
        return self._listeners

    def append(self, lines: Sequence[str], timestamp: str, raw_bytes: int) -> int:
        """Number and keep new lines, wake the streams; return the first number."""
        with self._changed:
            first_seq = self._next_seq
            self._next_seq += len(lines)
            kept = lines[-self._capacity :]
            self._chunks.append(Chunk(self._next_seq - len(kept), timestamp, kept, raw_bytes))
            self._raw_bytes += raw_bytes
            self._first_seq = max(self._first_seq, self._next_seq - self._capacity)
            while len(self._chunks) > 1 and (
                self._chunks[0].next_seq <= self._first_seq or self._raw_bytes > self._max_bytes
            ):
                gone = self._chunks.popleft()
                self._raw_bytes -= gone.raw_bytes
                self._first_seq = max(self._first_seq, gone.next_seq)
            self._changed.notify_all()
        self._counters.took(len(lines), raw_bytes)
        return first_seq

    def refill(self, lines: Sequence[str], timestamp: str, raw_bytes: int) -> None:
        """Put lines that were numbered before (by an earlier agent) in front; only while it is empty."""
        with self._changed:
            if self._chunks or not lines:
                return
            kept = lines[-min(self._capacity, self._next_seq) :]
            self._first_seq = self._next_seq - len(kept)
            self._chunks.append(Chunk(self._first_seq, timestamp, kept, raw_bytes))
            self._raw_bytes = raw_bytes

    def read(self, since: int | None, tail: int | None) -> list[LogLine] | None:
        """Lines numbered above `since`, of those the last `tail`; None when memory holds no line at all."""
        with self._changed:
            if self._first_seq == self._next_seq:
                return None
            first = self._first_seq if since is None else max(self._first_seq, since + 1)
            if tail is not None:
                first = max(first, self._next_seq - tail)
            chunks = self._from(first)
        return [line for chunk in chunks for line in chunk.numbered(first)]

    def settle(self) -> None:
        """Every line that an earlier agent showed has its number again; a higher one is of another life."""
        if not self._settled:
            with self._changed:
                self._settled = True
                self._changed.notify_all()

    def clear(self) -> None:
        """Forget the lines; numbers go on."""
        with self._changed:
            self._chunks.clear()
            self._raw_bytes = 0
            self._first_seq = self._next_seq

    def close(self) -> None:
        """End every stream."""
        with self._changed:
            self._closed = True
            self._chunks.clear()
            self._first_seq = self._next_seq
            self._changed.notify_all()

    def listen(self, since: int | None, tail: int | None) -> int:
        """Count one more stream; return the number of the line that it gets first."""
        with self._changed:
            self._listeners += 1
            first = self._first_seq
            if since is not None and not self._is_foreign(since + 1):
                first = since + 1
            if tail is not None:
                first = max(first, self._next_seq - tail)
            return first

    def unlisten(self) -> None:
        with self._changed:
            self._listeners -= 1

    def following(self, first: int, timeout_s: float) -> LogBatch | None:
        """What comes from number `first` on; waits up to `timeout_s` for the first line of it."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while first >= self._next_seq and not self._closed:
                if self._is_foreign(first):
                    first = self._first_seq  # start over
                    continue
                if (left := deadline - time.monotonic()) <= 0:
                    return None
                self._changed.wait(left)
            if self._closed:
                return None
            start = max(first, self._first_seq)
            chunks = self._from(start)
        if start > first:
            self._counters.lost(start - first)
        return LogBatch(start - first, start, chunks)

    def _is_foreign(self, first: int) -> bool:
        """True when the line before `first` was not numbered here. The caller holds the lock."""
        return self._settled and first > self._next_seq

    def _from(self, first: int) -> list[Chunk]:
        """The chunks that hold number `first` and those after it. The caller holds the lock."""
        newest_first: list[Chunk] = []
        for chunk in reversed(self._chunks):
            if chunk.next_seq <= first:
                break
            newest_first.append(chunk)
        return newest_first[::-1]


class LogCursor:
    """One stream's place in an instance's lines. Used by one thread."""

    def __init__(self, channel: Channel, since: int | None, tail: int | None):
        self._channel = channel
        self._next = channel.listen(since, tail)

    @property
    def closed(self) -> bool:
        """True after the instance was deleted, or the agent is stopping."""
        return self._channel.closed

    def next(self, timeout_s: float) -> LogBatch | None:
        """The next lines, all that there are; None when none came in time, or at the end."""
        batch = self._channel.following(self._next, timeout_s)
        if batch is not None:
            self._next = batch.chunks[-1].next_seq if batch.chunks else batch.first_seq
        return batch

    def close(self) -> None:
        """The stream has ended."""
        self._channel.unlisten()
