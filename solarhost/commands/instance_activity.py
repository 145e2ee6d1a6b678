"""What instances are doing: their runtime state, their counters, their newest request."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rich.table import Table

from solarhost.commands.failures import NoSuchThing
from solarhost.commands.output import age, table
from solarhost.commands.remote import Remote, path

COLUMNS = ("ALIAS", "STATUS", "PORT", "PHASE", "SLOTS", "TOK/S", "PROMPT", "GENERATED", "WAITING")


def activity(remote: Remote) -> list[dict[str, Any]]:
    """All instances, those that run with their state and counters."""
    found = []
    for one in remote.get("/instances"):
        state = usage = None
        if one["status"] == "running":
            with suppress(NoSuchThing):  # it was removed a moment ago
                state = remote.get(path("instances", one["id"], "state"))
                usage = remote.get(path("instances", one["id"], "usage"))
        basics = {key: one[key] for key in ("id", "status", "port")}
        found.append({**basics, "alias": one["config"]["alias"], "state": state, "usage": usage})
    return found


def activity_table(found: Sequence[Mapping[str, Any]]) -> Table:
    return table(COLUMNS, [_row(one) for one in found])


def activity_fields(remote: Remote, instance_id: str) -> Iterator[tuple[str, object]]:
    """What one that runs is doing, and what its newest request took."""
    with suppress(NoSuchThing):
        state = remote.get(path("instances", instance_id, "state"))
        yield "phase", state["phase"]
        yield "slots in use", state["active_slots"]
        yield "speed", _speed(state["decode_tps"])
        usage = remote.get(path("instances", instance_id, "usage"))
        yield "prompt tokens", usage["prompt_tokens_total"]
        yield "generated tokens", usage["generated_tokens_total"]
        yield "waiting requests", usage["requests_deferred"]
        last = remote.get(path("instances", instance_id, "last-generation"))
        speed = f" at {_speed(last['decode_tps'])}" if last["decode_tps"] else ""
        when = f", {age(last['finished_at'])} ago" if last["finished_at"] else ""
        yield (
            "newest request",
            f"{last['prompt_tokens']} + {last['generated_tokens']} tokens{speed}{when}",
        )


def _row(one: Mapping[str, Any]) -> Sequence[object]:
    state, usage = one["state"] or {}, one["usage"] or {}
    speed = state.get("decode_tps")
    return (
        one["alias"],
        one["status"],
        one["port"],
        state.get("phase"),
        state.get("active_slots"),
        None if speed is None else f"{speed:.1f}",
        usage.get("prompt_tokens_total"),
        usage.get("generated_tokens_total"),
        usage.get("requests_deferred"),
    )


def _speed(tokens_per_s: float | None) -> str | None:
    return None if tokens_per_s is None else f"{tokens_per_s:.1f} tokens/s"
