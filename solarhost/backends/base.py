"""What a backend is, and the values that flow out of one.

A backend knows one kind of model server: how its config is checked, how its command line is built,
how it says that it is ready, and what its log and metrics mean. It starts nothing itself; the
supervisor of an instance does that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from marshmallow import Schema

HEALTH_PATH = "/health"  # every server answers 200 there once it is ready, 503 before

Phase = Literal["idle", "prefill", "generating"]


@dataclass(frozen=True, slots=True)
class RuntimeState:
    """What a server is doing right now, as its log and metrics tell."""

    busy: bool = False
    phase: Phase = "idle"
    prefill_progress: float | None = None  # 0 to 1
    active_slots: int = 0
    slot_id: int | None = None  # the slot that spoke last
    task_id: int | None = None
    prefill_prompt_tokens: int | None = None
    generated_tokens: int | None = None
    decode_tps: float | None = None
    decode_ms_per_token: float | None = None
    checkpoint_index: int | None = None
    checkpoint_total: int | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Generation:
    """One finished request; the counts equal the usage block of its answer, to the token."""

    slot_id: int | None
    task_id: int | str | None
    prompt_tokens: int  # cached ones included, as OpenAI counts
    generated_tokens: int
    cached_tokens: int
    decode_tps: float | None
    decode_ms_per_token: float | None
    source: Literal["usage", "metrics", "log"]
    started_at: datetime | None
    finished_at: datetime | None

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "prompt_eval_tokens": self.prompt_tokens - self.cached_tokens,
            "total_tokens": self.prompt_tokens + self.generated_tokens,
            "started_at": self.started_at and self.started_at.isoformat(),
            "finished_at": self.finished_at and self.finished_at.isoformat(),
        }


@dataclass(frozen=True, slots=True)
class Usage:
    """Counters of a server since it started, from its `/metrics`; None where it reports none."""

    prompt_tokens_total: int | None = None
    generated_tokens_total: int | None = None
    cached_tokens_total: int | None = None
    requests_processing: int | None = None
    requests_deferred: int | None = None
    kv_cache_usage_ratio: float | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Activity(Protocol):
    """Follows one run of one server through its log lines. Called by one thread at a time.

    A new one is made for each run, so a late line of an earlier run can't mislead it.
    """

    @property
    def state(self) -> RuntimeState: ...

    @property
    def generations(self) -> Sequence[Generation]:
        """The newest finished requests, oldest first; bounded."""

    @property
    def ready_hint(self) -> bool:
        """True once a line announced readiness; it only makes the next probe immediate."""

    def feed(self, lines: Sequence[str], at: datetime) -> bool:
        """Take new log lines in order; True when `state` or `generations` changed."""

    def correct(self, usage: Usage) -> bool:
        """Let `/metrics` overrule what the log got wrong; True when `state` changed."""


@dataclass(frozen=True, slots=True)
class Command:
    """What to run for one start. Secrets are in `environment`, never in `argv`."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]  # added to the agent's own


@dataclass(frozen=True, slots=True)
class Launch:
    """What the agent decided for one start, for a backend to build its command from."""

    port: int
    keys: tuple[str, ...]  # accepted by the server: the config's own and the host's
    model_folder: Path | None  # where `model_source` was resolved to, None when the config names a path


@dataclass(frozen=True, slots=True)
class Probe:
    """What a running server says of itself; None where it doesn't."""

    context_size: int | None = None


class CannotStart(Exception):
    """A start that can't work, found before anything was spawned; trying again won't help."""


class Backend(Protocol):
    """One kind of model server. Stateless; safe from any thread."""

    backend_type: str
    schema: type[Schema]  # unknown keys are kept; loads to the config with its defaults
    final_exit_codes: frozenset[int]  # its server gave up for a reason that another try would meet again

    def endpoints(self, config: Mapping[str, Any]) -> list[str]:
        """The paths that its server offers (`supported_endpoints`)."""

    def capabilities(self, config: Mapping[str, Any]) -> list[str] | None: ...

    def context_size(self, config: Mapping[str, Any]) -> int | None:
        """The configured one; `probe` may know better once it runs."""

    def served_model_name(self, config: Mapping[str, Any]) -> str: ...

    def command(self, config: Mapping[str, Any], launch: Launch) -> Command:
        """The command of one start.

        Raises:
            CannotStart: the executable or a file is missing; says how to get it.
            InvalidRequest: a file pattern matches nothing, or several files of equal size.
        """

    def files(self, config: Mapping[str, Any], model_folder: Path | None) -> list[Path]:
        """Files on disk that this config uses, as far as they can be found now."""

    def activity(self) -> Activity:
        """A fresh log parser for one run."""

    def usage(self, metrics: str) -> Usage:
        """Read the text of `/metrics`; unknown or missing names give None fields."""

    def probe(self, base_url: str, headers: Mapping[str, str]) -> Probe:
        """Ask a ready server about itself (`/props`); never raises for a server that doesn't know."""

    def explain_failure(self, lines: Sequence[str], exit_code: int | None) -> str | None:
        """One sentence that names the cause of a failed start or a crash, if its last lines do."""
