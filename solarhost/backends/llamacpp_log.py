"""What llama-server's log lines and `/metrics` say.

Sources: the server's own print statements (`SLT_INF`, `print_timings`, `release` in tools/server), which
change between builds; each wording is one pair of pattern and handler in `_SLOT_LINES`.

Where the counts of a finished request come from:

- evaluated prompt tokens: the line `prompt eval time`;
- generated tokens: the line `eval time`. With speculative decoding that is what the server counts and
  bills, also where it cut a few drafted tokens off the text;
- all prompt tokens: the line `new prompt` where the build prints it, else the release line, whose number
  is prompt + generated - 1 (the last token is never fed back), less what context shifts discarded;
- cached tokens: the difference.

A release without timings ended a request that has no usage to tell: it was cancelled, or an embedding or
rerank task (of which one request may have many). It frees the slot and makes no generation.
"""

import math
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from solarhost.backends.base import Generation, Phase, RuntimeState, Usage

KEPT_GENERATIONS = 256
MAX_SLOTS = 1024  # more than any server has

# A batch without any of these is done after a few searches of its text, however many lines it has.
_MARKS = ("| task ", "eval time =", "slots are idle", "listening on", "model loaded")

_SLOT = re.compile(r"slot +\S*: +id +(\d{1,18}) \| task (\d{1,18}) \| *(.*)")
_BARE_TIMING = re.compile(r" *((?:prompt )?eval time = .*)")  # older builds: follows a print_timing line
_READY = re.compile(r"model loaded|listening on http")


@dataclass(slots=True)
class _Slot:
    """The request that a slot works on, or the last one it worked on."""

    slot_id: int
    task_id: int
    started_at: datetime | None = None
    active: bool = True
    phase: Phase = "prefill"
    progress: float | None = None
    prompt_tokens: int | None = None
    decoded: int | None = None  # so far
    tps: float | None = None
    ms_per_token: float | None = None
    checkpoint_index: int | None = None
    checkpoint_total: int | None = None
    evaluated: int | None = None
    generated: int | None = None  # in the end
    released: int | None = None  # what the release line counted
    discarded: int = 0  # by context shifts
    told: bool = False  # it became a Generation


class LlamaCppActivity:
    """Follows one run of llama-server through its log. Called by one thread at a time."""

    def __init__(self) -> None:
        self._slots: dict[int, _Slot] = {}
        self._latest: _Slot | None = None  # the slot that spoke last
        self._generations: deque[Generation] = deque(maxlen=KEPT_GENERATIONS)
        self._state = RuntimeState()
        self._ready_hint = False
        self._spoke = False  # a slot said something since the last `correct`

    @property
    def state(self) -> RuntimeState:
        return self._state

    @property
    def generations(self) -> Sequence[Generation]:
        return tuple(self._generations)

    @property
    def ready_hint(self) -> bool:
        return self._ready_hint

    def feed(self, lines: Sequence[str], at: datetime) -> bool:
        text = "\n".join(lines)
        marks = [mark for mark in _MARKS if mark in text]
        if not marks:
            return False
        newest = self._generations[-1] if self._generations else None
        for line in lines:
            if any(mark in line for mark in marks):
                self._read(line, at)
        changed = self._update()
        return changed or (bool(self._generations) and self._generations[-1] is not newest)

    def correct(self, usage: Usage) -> bool:
        """Let `requests_processing` overrule the log, once no slot has spoken since the last call.

        A reading that is older than the newest log lines is thus never believed; a `busy` that the log
        got wrong is gone at the second reading.
        """
        spoke, self._spoke = self._spoke, False
        processing = usage.requests_processing
        if spoke or processing is None:
            return False
        if processing == 0:
            if not self._state.busy:
                return False
            self._free_all()
            return self._update()
        if self._state.active_slots == 0:  # such as a request that began before this log was followed
            self._state = RuntimeState(busy=True, phase="generating", active_slots=processing)
            return True
        return False

    def _read(self, line: str, at: datetime) -> None:
        if found := _SLOT.search(line):
            slot = self._slot(int(found[1]), int(found[2]), at)
            self._read_message(slot, found[3], at)
        elif (found := _BARE_TIMING.fullmatch(line)) and self._latest:
            self._read_message(self._latest, found[1], at)
        elif "all slots are idle" in line:
            self._free_all()
        elif _READY.search(line):
            self._ready_hint = True

    def _slot(self, slot_id: int, task_id: int, at: datetime) -> _Slot:
        slot = self._slots.get(slot_id)
        if slot is None or slot.task_id != task_id:
            slot = self._slots[slot_id] = _Slot(slot_id, task_id, started_at=at)
            if len(self._slots) > MAX_SLOTS:
                del self._slots[next(iter(self._slots))]
        self._latest = slot
        self._spoke = True
        return slot

    def _read_message(self, slot: _Slot, message: str, at: datetime) -> None:
        for pattern, take in _SLOT_LINES:
            if found := pattern.match(message):
                take(slot, found)
                break
        if slot.released is not None and slot.generated is not None and not slot.told:
            slot.told = True
            self._generations.append(_generation(slot, slot.released, slot.generated, at))

    def _free_all(self) -> None:
        for slot in self._slots.values():
            slot.active = False

    def _update(self) -> bool:
        """Make the state anew from the slots; True when it changed."""
        active = [slot for slot in self._slots.values() if slot.active]
        state = RuntimeState()
        if active:
            shown = self._latest if self._latest in active else active[-1]
            assert shown is not None
            state = RuntimeState(
                busy=True,
                phase=shown.phase,
                prefill_progress=shown.progress,
                active_slots=len(active),
                slot_id=shown.slot_id,
                task_id=shown.task_id,
                prefill_prompt_tokens=shown.prompt_tokens,
                generated_tokens=shown.decoded,
                decode_tps=shown.tps,
                decode_ms_per_token=shown.ms_per_token,
                checkpoint_index=shown.checkpoint_index,
                checkpoint_total=shown.checkpoint_total,
            )
        changed = state != self._state
        self._state = state
        return changed


def _generation(slot: _Slot, released: int, generated: int, at: datetime) -> Generation:
    evaluated = slot.evaluated or 0
    prompt = slot.prompt_tokens
    if prompt is None:
        prompt = released + 1 - generated + slot.discarded
    prompt = max(prompt, evaluated)
    return Generation(
        slot_id=slot.slot_id,
        task_id=slot.task_id,
        prompt_tokens=prompt,
        generated_tokens=generated,
        cached_tokens=prompt - evaluated,
        decode_tps=slot.tps,
        decode_ms_per_token=slot.ms_per_token,
        source="log",
        started_at=slot.started_at,
        finished_at=at,
    )


def _finite(text: str) -> float | None:
    """A printed number; None for the `inf` and `nan` of a division by zero."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _launched(slot: _Slot, _found: re.Match[str]) -> None:
    slot.active = True


def _new_prompt(slot: _Slot, found: re.Match[str]) -> None:
    slot.prompt_tokens = int(found[1])


def _prompt_progress(slot: _Slot, found: re.Match[str]) -> None:
    slot.phase = "prefill"
    slot.progress = _finite(found[1])


def _prompt_done(slot: _Slot, _found: re.Match[str]) -> None:
    slot.phase = "generating"
    slot.progress = 1.0


def _checkpoint(slot: _Slot, found: re.Match[str]) -> None:
    slot.checkpoint_index, slot.checkpoint_total = int(found[1]), int(found[2])


def _decoding(slot: _Slot, found: re.Match[str]) -> None:
    slot.phase = "generating"
    slot.progress = 1.0
    slot.decoded = int(found[1])
    slot.tps = _finite(found[2])
    slot.ms_per_token = 1000 / slot.tps if slot.tps else None


def _prompt_timing(slot: _Slot, found: re.Match[str]) -> None:
    slot.evaluated = int(found[1])


def _timing(slot: _Slot, found: re.Match[str]) -> None:
    slot.phase = "generating"
    slot.progress = 1.0
    slot.generated = slot.decoded = int(found[1])
    slot.ms_per_token, slot.tps = _finite(found[2]) or None, _finite(found[3]) or None  # 0 after one token


def _shifted(slot: _Slot, found: re.Match[str]) -> None:
    slot.discarded += int(found[1])


def _released(slot: _Slot, found: re.Match[str]) -> None:
    slot.active = False
    slot.released = int(found[1])


# What may follow `slot …: id S | task T | `. Older wordings of the same thing share a pattern.
_SLOT_LINES: list[tuple[re.Pattern[str], Callable[[_Slot, re.Match[str]], None]]] = [
    (re.compile(r"processing task"), _launched),
    (re.compile(r"new prompt.* (?:task\.n_tokens|n_prompt_tokens) = (\d{1,18})"), _new_prompt),
    (re.compile(r"prompt processing.*progress = ([\d.]+)"), _prompt_progress),
    (re.compile(r"prompt done"), _prompt_done),
    (re.compile(r"created context checkpoint (\d{1,18}) of (\d{1,18})"), _checkpoint),
    (re.compile(r"SWA checkpoint create.*total = (\d{1,18})/(\d{1,18})"), _checkpoint),
    (re.compile(r"n_(?:decoded|gen) = +(\d{1,18}), tg = +([\w.-]+) t/s"), _decoding),
    (re.compile(r"prompt eval time = .*/ +(\d{1,18}) tokens"), _prompt_timing),
    (
        re.compile(
            r"eval time = .*/ +(\d{1,18}) (?:tokens|runs) +\( *([\w.-]+) ms per token, +([\w.-]+) tokens"
        ),
        _timing,
    ),
    (re.compile(r"(?:slot )?context shift, .*n_discard = (\d{1,18})"), _shifted),
    (re.compile(r"stop processing: n_(?:tokens|past) = (\d{1,18})"), _released),
]

_METRIC = re.compile(r"^llamacpp:(\w+)(?:\{[^}\n]*\})? +([\w.+-]+)", re.MULTILINE)


def read_usage(metrics: str) -> Usage:
    """The counters in the text of `/metrics`; names that a build lacks give None."""
    values = {name: value for name, text in _METRIC.findall(metrics) if (value := _finite(text)) is not None}

    def count(name: str) -> int | None:
        return int(values[name]) if name in values else None

    return Usage(
        prompt_tokens_total=count("prompt_tokens_total"),
        generated_tokens_total=count("tokens_predicted_total"),
        cached_tokens_total=count("prompt_tokens_cached_total"),
        requests_processing=count("requests_processing"),
        requests_deferred=count("requests_deferred"),
        kv_cache_usage_ratio=values.get("kv_cache_usage_ratio"),
    )
