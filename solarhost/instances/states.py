"""Runtime states as a stream: the present one, then each change."""

from collections import deque
from threading import Condition, Lock
from time import monotonic
from typing import Any

from solarhost.times import now_iso

KEPT = 256  # changes a slow reader may be behind before it misses some


class StateFeed:
    """The runtime state of one instance. Safe from any thread."""

    def __init__(self, instance_id: str):
        self._instance_id = instance_id
        self._changed = Condition(Lock())  # guards the fields below
        self._entries: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._seq = 0
        self._closed = False

    def publish(self, state: dict[str, Any]) -> None:
        with self._changed:
            self._seq += 1
            self._entries.append(
                {"seq": self._seq, "timestamp": now_iso(), "type": "instance_state", "data": state}
            )
            self._changed.notify_all()

    def close(self) -> None:
        """The instance was deleted: readers get what is left, then see `closed`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def watch(self, present: dict[str, Any]) -> "StateCursor":
        """A reader that starts with `present`."""
        with self._changed:
            return StateCursor(self, self._seq, {"type": "instance_state", "data": present})

    def after(self, seq: int, timeout_s: float) -> list[dict[str, Any]] | None:
        """Entries newer than `seq`, waiting for one; None when there is none in time."""
        deadline = monotonic() + timeout_s
        with self._changed:
            self._changed.wait_for(lambda: self._seq > seq or self._closed, max(0.0, deadline - monotonic()))
            return [entry for entry in self._entries if entry["seq"] > seq] or None

    @property
    def closed(self) -> bool:
        return self._closed


class StateCursor:
    """One reader's place in a feed. Used by one thread."""

    def __init__(self, feed: StateFeed, seq: int, first: dict[str, Any]):
        self._feed = feed
        self._seq = seq
        self._first: dict[str, Any] | None = first

    @property
    def closed(self) -> bool:
        """No more will come after what `next` still gives."""
        return self._feed.closed

    def next(self, timeout_s: float) -> list[dict[str, Any]] | None:
        """Messages ready to send, oldest first; None when nothing changed within `timeout_s`."""
        if self._first is not None:
            first, self._first = self._first, None
            return [first]
        entries = self._feed.after(self._seq, timeout_s)
        if entries:
            self._seq = entries[-1]["seq"]
        return entries
