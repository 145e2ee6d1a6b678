"""What the log and the `/metrics` of a llama-server mean."""

from collections.abc import Sequence
from datetime import datetime

from solarhost.backends.base import Generation, RuntimeState, Usage


class LlamaCppActivity:
    """Follows one run through its log lines; for now it knows readiness only."""

    def __init__(self) -> None:
        self.state = RuntimeState()
        self.generations: Sequence[Generation] = ()
        self.ready_hint = False

    def feed(self, lines: Sequence[str], at: datetime) -> bool:  # noqa: ARG002
        self.ready_hint = self.ready_hint or any("listening on http" in line for line in lines)
        return False

    def correct(self, usage: Usage) -> bool:  # noqa: ARG002
        return False


def read_usage(metrics: str) -> Usage:
    """Read Prometheus text; a name that this build does not have stays None."""
    values = {}
    for line in metrics.splitlines():
        name, _, value = line.partition(" ")
        if name.startswith("llamacpp:"):
            values[name.removeprefix("llamacpp:")] = float(value)

    def whole(name: str) -> int | None:
        return int(values[name]) if name in values else None

    return Usage(
        prompt_tokens_total=whole("prompt_tokens_total"),
        generated_tokens_total=whole("tokens_predicted_total"),
        cached_tokens_total=whole("prompt_tokens_cached_total"),
        requests_processing=whole("requests_processing"),
        requests_deferred=whole("requests_deferred"),
        kv_cache_usage_ratio=values.get("kv_cache_usage_ratio"),
    )
