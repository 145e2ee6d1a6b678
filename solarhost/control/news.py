"""What other threads tell the control thread, and what it waits on."""

from queue import Empty, SimpleQueue
from typing import Any, NamedTuple


class News(NamedTuple):
    """Something that happened; `attempt` numbers the connection that it is about, if any."""

    attempt: int | None
    name: str
    data: Any = None

    def text(self, field: str) -> str | None:
        """A field of an event of control; None when there is none, or it is no text as it should be."""
        value = self.data.get(field) if isinstance(self.data, dict) else None
        return value if isinstance(value, str) else None


class Inbox:
    """Any thread tells, the control thread reads."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[News] = SimpleQueue()

    def tell(self, attempt: int | None, name: str, data: Any = None) -> None:
        self._queue.put(News(attempt, name, data))

    def next(self, timeout_s: float | None) -> News | None:
        """The next news; None when there was nothing for `timeout_s` seconds."""
        try:
            return self._queue.get(timeout=timeout_s)
        except Empty:
            return None
