"""What the log and the `/metrics` of an hf_server mean."""

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from solarhost.backends.base import Generation, RuntimeState, Usage
from solarhost.backends.key_values import key_values

_KEPT = 100  # finished requests
_OK = "200"
_NUMBER_MAX = 1e15
_MAX_RUNNING = 10_000  # whose end was not seen; a server has a bounded queue

Fields = Mapping[str, str]


class HuggingFaceActivity:
    """Follows one run through its log lines; see `Activity`."""

    def __init__(self) -> None:
        self.state = RuntimeState()
        self.ready_hint = False
        self._generations: deque[Generation] = deque(maxlen=_KEPT)
        self._running: dict[str, int] = {}  # request id -> prompt tokens, in the order of their starts
        self._generating: set[str] = set()  # those that have their first token

    @property
    def generations(self) -> Sequence[Generation]:
        return tuple(self._generations)

    def feed(self, lines: Sequence[str], at: datetime) -> bool:
        before, ended = self.state, 0
        for line in lines:
            fields = key_values(line)
            match fields.get("event"):
                case "ready":
                    self.ready_hint = True
                case "request_start" if "id" in fields:
                    self._running[fields["id"]] = _whole(fields, "prompt_tokens")
                    if len(self._running) > _MAX_RUNNING:
                        self._forget(next(iter(self._running)))
                    self._settle(fields["id"])
                case "first_token" if fields.get("id") in self._running:
                    self._generating.add(fields["id"])
                    self._settle(fields["id"])
                case "progress":
                    self._progress(fields)
                case "request_end" if "id" in fields:
                    self._end(fields, at)
                    ended += 1
        return self.state != before or ended > 0

    def correct(self, usage: Usage) -> bool:
        before = self.state
        if usage.requests_processing == 0 and not usage.requests_deferred and self._running:
            self._running.clear()
            self._generating.clear()
            self._settle(None)
        return self.state != before

    def _settle(self, spoke: str | None) -> None:
        """Derive the state from what runs; `spoke` is the request of the last line."""
        task = spoke if spoke in self._running else next(reversed(self._running), None)
        if task is None:
            self.state = RuntimeState()
            return
        generating = task in self._generating
        self.state = RuntimeState(
            busy=True,
            phase="generating" if generating else "prefill",
            prefill_progress=1.0 if generating else None,
            active_slots=len(self._running),
            prefill_prompt_tokens=self._running[task],
            generated_tokens=self.state.generated_tokens if generating else None,
            decode_tps=self.state.decode_tps if generating else None,
            decode_ms_per_token=self.state.decode_ms_per_token if generating else None,
        )

    def _forget(self, request: str) -> None:
        self._running.pop(request, None)
        self._generating.discard(request)

    def _progress(self, fields: Fields) -> None:
        """Numbers of all running answers together, written each second."""
        if not self._generating:
            return
        tps = _number(fields, "tps")
        self.state = RuntimeState(
            busy=True,
            phase="generating",
            prefill_progress=1.0,
            active_slots=len(self._running),
            prefill_prompt_tokens=self.state.prefill_prompt_tokens,
            generated_tokens=_whole(fields, "generated_tokens"),
            decode_tps=tps,
            decode_ms_per_token=1000 / tps if tps else None,
        )

    def _end(self, fields: Fields, at: datetime) -> None:
        """Count an answered request by its last line alone; its first one may be lost."""
        self._forget(fields["id"])
        self._settle(None)
        if fields.get("status") != _OK:
            return
        finished_at = _time(fields) or at
        generated = _whole(fields, "generated_tokens")
        decode_s = _number(fields, "decode_s")
        tps = (generated - 1) / decode_s if decode_s and generated > 1 else None
        duration_s = _number(fields, "duration_s")
        self._generations.append(
            Generation(
                slot_id=None,
                task_id=fields["id"],
                prompt_tokens=_whole(fields, "prompt_tokens"),
                generated_tokens=generated,
                cached_tokens=_whole(fields, "cached_tokens"),
                decode_tps=tps,
                decode_ms_per_token=1000 / tps if tps else None,
                source="log",
                started_at=None if duration_s is None else finished_at - timedelta(seconds=duration_s),
                finished_at=finished_at,
            )
        )


def read_usage(metrics: str) -> Usage:
    """Read Prometheus text; a name that is not there stays None."""
    values = {}
    for line in metrics.splitlines():
        name, _, value = line.partition(" ")
        if name.startswith("hf_server_"):
            values[name.removeprefix("hf_server_")] = value

    def whole(name: str) -> int | None:
        number = _number(values, name)
        return None if number is None else int(number)

    return Usage(
        prompt_tokens_total=whole("prompt_tokens_total"),
        generated_tokens_total=whole("generated_tokens_total"),
        cached_tokens_total=whole("cached_tokens_total"),
        requests_processing=whole("requests_processing"),
        requests_deferred=whole("requests_waiting"),
        kv_cache_usage_ratio=_number(values, "kv_cache_usage_ratio"),
    )


def _number(fields: Fields, name: str) -> float | None:
    """A printed number; None where there is none, or one that no count or duration can be."""
    try:
        value = float(fields[name])
    except (KeyError, ValueError):
        return None
    return value if 0 <= value <= _NUMBER_MAX else None


def _whole(fields: Fields, name: str) -> int:
    return int(_number(fields, name) or 0)


def _time(fields: Fields) -> datetime | None:
    try:
        time = datetime.fromisoformat(fields["time"])
    except (KeyError, ValueError):
        return None
    return time if time.tzinfo else None
