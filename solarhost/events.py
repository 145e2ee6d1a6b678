"""What the parts tell the world. Small frozen values; whoever gets one may keep it.

A part receives a `Publish` in its constructor and calls it under no lock of another part; publishing
never blocks and never raises. The control link's outbox is the one real receiver.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class InstancesChanged:
    """An instance was created, deleted, or changed status, config or owner. `flat` is the whole list."""

    flat: Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class LogLines:
    """New lines of one instance, already redacted: `lines[i]` has number `first_seq + i`."""

    instance_id: str
    first_seq: int
    timestamp: str
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class InstanceState:
    """The runtime state of an instance changed (keys as in `GET /instances/{id}/state`)."""

    instance_id: str
    timestamp: str
    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PullProgress:
    """Progress of one pull; `completed` and `failed` are terminal and come exactly once."""

    source_uri: str
    phase: str  # resolving, downloading, verifying, finalizing, completed, failed
    bytes_done: int
    bytes_total: int | None
    speed_bps: float | None
    timestamp: str


@dataclass(frozen=True, slots=True)
class JobEvent:
    """A job or step lifecycle event, sent by its own name (`job_started`, `step_failed`, …).

    The entry that ends the log of a step is one, too (`step_log`).
    After a restart of the agent it is published again, unless solar-control was seen to have it.
    """

    name: str
    payload: dict[str, Any]
    run: str  # the job's `uid`
    number: int  # counts the events of that job from 1


@dataclass(frozen=True, slots=True)
class StepLogLines:
    """Entries of a `step_log` event: lines."""

    entries: Sequence[dict[str, Any]]


Event = InstancesChanged | LogLines | InstanceState | PullProgress | JobEvent | StepLogLines
Publish = Callable[[Event], None]
Delivered = Callable[[JobEvent], None]  # solar-control has it, or there is no control to have it
