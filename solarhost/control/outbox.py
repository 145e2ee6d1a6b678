"""What waits to be sent to solar-control.

Publishers only append, under one short lock; the control thread takes everything that is due. There
are two kinds of news:

- *kept*: status changes, job and step events, ends of pulls and of step logs. The newest KEPT_LIMIT
  wait for a connection, and after that for control's acknowledgement.
- *passing*: log lines, runtime states, progress. They are for a control that listens now. What it
  can't take in time is dropped, oldest first, beyond PASSING_LIMIT entries of each kind, and counted.
"""

import itertools
import time
from dataclasses import replace
from threading import Lock

from solarhost.control.batches import LINE_CHARACTERS, Message, build_messages
from solarhost.control.payloads import Json
from solarhost.control.queues import BoundedQueue, Item
from solarhost.events import (
    Event,
    InstancesChanged,
    InstanceState,
    JobEvent,
    LogLines,
    PullProgress,
    StepLogLines,
)
from solarhost.times import now_iso

KEPT_LIMIT = 1_000
PASSING_LIMIT = 10_000
UNCONFIRMED_LIMIT = 1  # so many can come twice when control dies before it acknowledges them

ENDS_OF_PULLS = frozenset({"completed", "failed"})


class Outbox:
    """Safe from any thread; `put` waits for nothing but its lock, and never raises."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards all below
        self._orders = itertools.count()
        self._kept = BoundedQueue(KEPT_LIMIT, expendable=_is_list_of_instances)
        self._unconfirmed: dict[int, tuple[Item, float]] = {}  # by order: what was sent, and when
        self._delivered: list[JobEvent] = []  # what control has, for `take_delivered`
        self._logs = BoundedQueue(PASSING_LIMIT)
        self._step_logs = BoundedQueue(PASSING_LIMIT)
        self._progress = BoundedQueue(PASSING_LIMIT)
        self._states: dict[str, Item] = {}  # the latest of each instance
        self._listening = False

    def put(self, event: Event) -> None:
        """Take one event; a passing one is let go while control doesn't listen."""
        with self._lock:
            match event:
                case InstancesChanged() | JobEvent():
                    self._kept.put(self._item(event, kept=True))
                case PullProgress() if event.phase in ENDS_OF_PULLS:
                    self._kept.put(self._item(event, kept=True))
                case _ if not self._listening:
                    pass
                case LogLines():
                    self._put_log(event)
                case StepLogLines():
                    self._put_step_log(event)
                case PullProgress():
                    self._progress.put(self._item(event))
                case InstanceState():
                    self._states[event.instance_id] = self._item(event)

    def listen(self) -> None:
        """Control has acknowledged the host: passing news are worth queueing from now on."""
        with self._lock:
            self._listening = True

    def disconnected(self) -> None:
        """Passing news are gone; kept ones that control did not acknowledge wait for the next time."""
        with self._lock:
            self._listening = False
            for queue in (self._logs, self._step_logs, self._progress):
                queue.clear()
            self._states.clear()
            self._kept.put_back(item for item, _ in self._unconfirmed.values())
            self._unconfirmed.clear()

    def take(self) -> list[Message]:
        """What is due, in order; what is kept of it counts as unconfirmed from now on.

        With UNCONFIRMED_LIMIT events unconfirmed, the next kept one, and all that came after it, waits.
        Lists of instances do not count: one that comes twice says nothing new.
        """
        with self._lock:
            fence = self._fence()
            kept = self._kept.take(fence)
            items = list(kept)
            for queue in (self._logs, self._step_logs, self._progress):
                items += queue.take(fence)
            for instance_id, item in list(self._states.items()):
                if fence is None or item.order < fence:
                    items.append(self._states.pop(instance_id))
            sent_at = time.monotonic()
            self._unconfirmed |= {item.order: (item, sent_at) for item in kept}
        return build_messages(sorted(items, key=lambda item: item.order))

    def confirm(self, item: Item) -> None:
        """Control has it. Without effect after a disconnect: then it is sent once more."""
        with self._lock:
            self._confirm(item)

    def confirm_sent_before(self, moment: float) -> list[Item]:
        """Give up waiting for acknowledgements of what was sent before `moment`; return those items."""
        with self._lock:
            overdue = [item for item, sent_at in self._unconfirmed.values() if sent_at < moment]
            for item in overdue:
                self._confirm(item)
        return overdue

    def take_delivered(self) -> list[JobEvent]:
        """The events of jobs that control has got since the last call."""
        with self._lock:
            delivered, self._delivered = self._delivered, []
        return delivered

    @property
    def kept_is_due(self) -> bool:
        """Something kept could be sent now."""
        with self._lock:
            return self._kept.has_before(self._fence())

    @property
    def is_empty(self) -> bool:
        """Nothing waits, and control has acknowledged all that is kept."""
        return not any(self.queued().values())

    def queued(self) -> dict[str, int]:
        """Entries that wait, by kind."""
        with self._lock:
            return {
                "logs": self._logs.entries,
                "step_logs": self._step_logs.entries,
                "states": len(self._states),
                "progress": self._progress.entries,
                "kept": self._kept.entries,
                "unconfirmed": len(self._unconfirmed),
            }

    def dropped(self) -> dict[str, int]:
        """Entries that were queued and never sent, by kind, since the start."""
        with self._lock:
            return {
                "logs": self._logs.dropped,
                "step_logs": self._step_logs.dropped,
                "progress": self._progress.dropped,
                "kept": self._kept.dropped,
            }

    def _fence(self) -> int | None:
        """The order of the first item that has to wait for an acknowledgement. The caller holds the lock."""
        counted = sum(not _is_list_of_instances(item) for item, _ in self._unconfirmed.values())
        return self._kept.order_at(UNCONFIRMED_LIMIT - counted)

    def _confirm(self, item: Item) -> None:
        """The caller holds the lock."""
        if self._unconfirmed.pop(item.order, None) and isinstance(item.event, JobEvent):
            self._delivered.append(item.event)

    def _item(self, event: Event, *, kept: bool = False, lines: list[str] | None = None) -> Item:
        order, at = next(self._orders), now_iso()
        if lines is None:
            return Item(order, at, event, kept)
        return Item(order, at, event, kept, entries=len(lines), characters=sum(map(len, lines)))

    def _put_log(self, event: LogLines) -> None:
        surplus = max(0, len(event.lines) - PASSING_LIMIT)
        lines = [line[:LINE_CHARACTERS] for line in event.lines[surplus:]]
        kept_part = replace(event, first_seq=event.first_seq + surplus, lines=lines)
        self._logs.dropped += surplus
        self._logs.put(self._item(kept_part, lines=lines))

    def _put_step_log(self, event: StepLogLines) -> None:
        surplus = max(0, len(event.entries) - PASSING_LIMIT)
        self._step_logs.dropped += surplus
        entries = [_cut(entry) for entry in event.entries[surplus:]]
        texts = [entry.get("line", "") for entry in entries]
        self._step_logs.put(self._item(StepLogLines(entries), lines=texts))


def _cut(entry: Json) -> Json:
    line = entry.get("line", "")
    return entry if len(line) <= LINE_CHARACTERS else {**entry, "line": line[:LINE_CHARACTERS]}


def _is_list_of_instances(item: Item) -> bool:
    """Later lists, and the one sent after each acknowledgement, say all that an old one did."""
    return isinstance(item.event, InstancesChanged)
