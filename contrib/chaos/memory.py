"""What the agent has acknowledged, so that a loss is seen."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock


@dataclass
class Promise:
    """Something that was created and acknowledged. Moments are `time.monotonic()`."""

    made: float
    deletes: int = 0  # requests to delete it that are under way
    deleting_until: float = 0.0  # when the last of them ended
    deleted: float | None = None  # when one was acknowledged
    unsure: bool = False  # one got no answer

    def owed(self, asked: float) -> bool:
        """It must be in a list that was asked for at `asked` and has been answered."""
        quiet = not self.deletes and self.deleting_until < asked
        return self.made < asked and quiet and self.deleted is None and not self.unsure

    def gone(self, asked: float) -> bool:
        """It must not be in a list that was asked for at this moment."""
        return self.deleted is not None and self.deleted < asked


class Deletion:
    """One request to delete; `done` or `refused` says how it was answered."""

    def __init__(self) -> None:
        self.answered: bool | None = None

    def done(self) -> None:
        self.answered = True

    def refused(self) -> None:
        self.answered = False


class Promises:
    """Promises of one kind, by id. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards _by_id and what is in it
        self._by_id: dict[str, Promise] = {}

    def make(self, name: str, asked: float) -> None:
        """It was acknowledged by the answer to a request that was sent at `asked`."""
        with self._lock:
            old = self._by_id.get(name)
            crossed = old is not None and (old.deletes > 0 or old.deleting_until >= asked)
            self._by_id[name] = Promise(time.monotonic(), unsure=crossed)

    @contextmanager
    def deletion(self, name: str) -> Iterator[Deletion]:
        """Around a request to delete it, or one that may have that effect."""
        deletion = Deletion()
        with self._lock:
            promise = self._by_id.get(name) or Promise(0.0, unsure=True)
            promise.deletes += 1
        try:
            yield deletion
        finally:
            with self._lock:
                promise.deletes -= 1
                promise.deleting_until = time.monotonic()
                if deletion.answered:
                    promise.deleted = promise.deleting_until
                elif deletion.answered is None:
                    promise.unsure = True

    def forget(self) -> None:
        """None of them is owed any more."""
        with self._lock:
            self._by_id = {}

    def made(self, name: str) -> float:
        """When it was acknowledged; 0 for what never was."""
        with self._lock:
            promise = self._by_id.get(name)
            return promise.made if promise else 0.0

    def owed(self, asked: float) -> set[str]:
        with self._lock:
            return {name for name, promise in self._by_id.items() if promise.owed(asked)}

    def gone(self, asked: float) -> set[str]:
        with self._lock:
            return {name for name, promise in self._by_id.items() if promise.gone(asked)}


@dataclass
class Memory:
    """All that was acknowledged, and which instance is in which slot. Safe from any thread."""

    instances: Promises = field(default_factory=Promises)
    jobs: Promises = field(default_factory=Promises)
    models: Promises = field(default_factory=Promises)  # by source URI
    job_ends: dict[str, float] = field(default_factory=dict)  # when a job was first seen to have ended
    reservations: Promises = field(default_factory=Promises)  # they live as long as the worker
    slots: dict[str, str] = field(default_factory=dict)  # slot to instance id
