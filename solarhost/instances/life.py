"""An instance's record under its lock."""

import logging
from collections.abc import Callable
from dataclasses import replace
from threading import Condition, Lock
from typing import Any

from solarhost.instances.errors import StillWorking, UnknownInstance
from solarhost.instances.record import Record
from solarhost.instances.status import MOVES, Status
from solarhost.instances.store import InstanceStore

logger = logging.getLogger(__name__)


class Life:
    """One instance's lock and record; `move` is the only place where a status changes.

    Whoever asks for something waits on `changed` for the outcome. Locks are taken in this order:
    `changed`, then the store's or a log's or the ledger's; while one is held, nothing is waited for
    but `changed` itself.

    Args:
        patience_s: the longest that a stop or an exit may take.
    """

    def __init__(self, instance_id: str, store: InstanceStore, patience_s: float):
        self.id = instance_id
        self.changed = Condition(Lock())
        self._store = store
        self._patience_s = patience_s

    @property
    def record(self) -> Record:
        """The record as it is now.

        Raises:
            UnknownInstance: it was deleted.
        """
        record = self._store.get(self.id)
        if record is None:
            raise UnknownInstance(self.id)
        return record

    @property
    def status(self) -> Status:
        """Its status; one that was deleted counts as stopped."""
        record = self._store.get(self.id)
        return record.status if record else Status.STOPPED

    def move(self, to: Status, **fields: Any) -> None:
        """Change the status, and what changes with it. The caller holds `changed`."""
        now = self.record.status
        if to not in MOVES[now]:
            raise AssertionError(f"instance {self.id}: {now} cannot become {to}")
        self.note(status=to, **fields)
        logger.info("instance %s: %s -> %s", self.id, now, to)

    def note(self, **fields: Any) -> None:
        """Write facts into the record and wake whoever waits. The caller holds `changed`."""
        self._store.note(replace(self.record, **fields))
        self.changed.notify_all()

    def wait_for(self, condition: Callable[[], Any], what: str, timeout_s: float | None = None) -> None:
        """Wait on `changed`, bounded. The caller holds it.

        Raises:
            StillWorking: it took longer than it may.
        """
        longest_s = self._patience_s if timeout_s is None else timeout_s
        if not self.changed.wait_for(condition, longest_s):
            raise StillWorking(f"instance {self.id}: {what} did not end within {longest_s:.0f} s")
