"""From queued events to Socket.IO messages, in the order in which they were published."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from solarhost.control import payloads
from solarhost.control.payloads import Json
from solarhost.control.queues import Item
from solarhost.events import InstancesChanged, InstanceState, JobEvent, LogLines, PullProgress, StepLogLines

# A Socket.IO server closes the connection at a message of 1,000,000 bytes, and JSON may need twelve
# bytes for one character, so neither a batch nor one line may come near that.
BATCH_ENTRIES = 1_000
BATCH_CHARACTERS = 64 * 1024
LINE_CHARACTERS = 60_000


@dataclass(frozen=True, slots=True)
class Message:
    """One Socket.IO event, ready to send."""

    event: str
    payload: Json
    kept: Item | None = field(default=None, repr=False)  # to confirm once control has acknowledged it


def build_messages(items: Iterable[Item]) -> list[Message]:
    """Messages of `items`; neighbours share one where control reads batches.

    A kept item is a fence: a line published before it is sent before it, and one published after it
    is sent after it, so that the end of a step comes after its last line.
    """
    messages: list[Message] = []
    open_batches: dict[str, _Batch] = {}

    def batch(event: str, entries: Sequence[Json]) -> None:
        for entry in entries:
            current = open_batches.get(event)
            if current is None or not current.has_room_for(entry):
                current = open_batches[event] = _Batch()
                messages.append(Message(event, {"entries": current.entries}))
            current.add(entry)

    for item in items:
        if item.kept:
            open_batches.clear()
            messages.append(kept_message(item))
            continue
        match item.event:
            case LogLines() as event:
                batch("log_batch", payloads.log_entries(event))
            case StepLogLines(entries):
                batch("step_log", entries)
            case InstanceState() as event:
                batch("instance_state_batch", [payloads.state_entry(event)])
            case PullProgress() as event:
                messages.append(Message("pull_progress", payloads.pull_progress(event)))
    return messages


def kept_message(item: Item) -> Message:
    """Raises TypeError: an item of its kind is never kept."""
    match item.event:
        case InstancesChanged(flat):
            return Message("instances_update", payloads.instances_update(flat, item.published_at), item)
        case JobEvent(name, payload):
            return Message(name, payload, item)
        case PullProgress() as event:
            return Message("pull_progress", payloads.pull_progress(event), item)
        case other:
            raise TypeError(f"{type(other).__name__} is never kept")


class _Batch:
    def __init__(self) -> None:
        self.entries: list[Json] = []
        self._characters = 0

    def has_room_for(self, entry: Json) -> bool:
        characters = self._characters + len(entry.get("line", ""))
        return len(self.entries) < BATCH_ENTRIES and characters <= BATCH_CHARACTERS

    def add(self, entry: Json) -> None:
        self.entries.append(entry)
        self._characters += len(entry.get("line", ""))
