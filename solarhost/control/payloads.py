"""What solar-control reads, as plain JSON values. Pure functions of what happened.

Names and keys are those of an existing program: add a key if you must, never rename one.
"""

from collections.abc import Sequence
from typing import Any

from solarhost.events import InstanceState, LogLines, PullProgress
from solarhost.times import now_iso

Json = dict[str, Any]

ROLES = ("inference",)

STATE_KEYS = (
    "busy",
    "phase",
    "prefill_progress",
    "active_slots",
    "slot_id",
    "task_id",
    "prefill_prompt_tokens",
    "generated_tokens",
    "decode_tps",
    "decode_ms_per_token",
    "checkpoint_index",
    "checkpoint_total",
)


def registration(
    host_name: str,
    instances: Sequence[Json],
    gpu_type: str,
    supported_backends: Sequence[str],
    version: str,
) -> Json:
    return {
        "host_name": host_name,
        "instances": list(instances),
        "roles": list(ROLES),
        "gpu_type": gpu_type,
        "supported_backends": list(supported_backends),
        "version": version,
    }


def health_data(
    instances: Sequence[Json],
    gpu_type: str,
    supported_backends: Sequence[str],
    version: str,
    *,
    memory: Json | None,
    disk: Json | None,
    resources: Json,
) -> Json:
    """The `data` of `host_health`.

    Args:
        instances: flat ones.
        memory: the body of `GET /memory`, None while it can't be read.
        disk: `{total_gb, used_gb, available_gb}` of the models' disk, None while it can't be read.
        resources: exactly the body of `GET /resources`; older versions of control read the
            summary of it that goes under `reservations`.
    """
    data: Json = {
        "memory": memory,
        "gpu_type": gpu_type,
        "roles": list(ROLES),
        "supported_backends": list(supported_backends),
        "instance_count": len(instances),
        "running_instance_count": sum(1 for flat in instances if flat["status"] == "running"),
        "version": version,
    }
    if disk is not None:
        data |= {f"disk_{key}": disk[key] for key in ("total_gb", "used_gb", "available_gb")}
    data["reservations"] = {
        "active_count": len(resources["reservations"]),
        **{name: resources[name] for name in ("vram", "ram", "disk") if resources.get(name) is not None},
    }
    data["resources"] = resources
    return data


def host_health(data: Json) -> Json:
    return {"timestamp": now_iso(), "data": data}


def instances_update(flat: Sequence[Json], timestamp: str) -> Json:
    return {"timestamp": timestamp, "data": {"instances": list(flat)}}


def log_entries(event: LogLines) -> list[Json]:
    return [
        {"instance_id": event.instance_id, "seq": seq, "line": line, "timestamp": event.timestamp}
        for seq, line in enumerate(event.lines, event.first_seq)
    ]


def state_entry(event: InstanceState) -> Json:
    return {
        "instance_id": event.instance_id,
        "timestamp": event.timestamp,
        "data": {key: event.state.get(key) for key in STATE_KEYS},
    }


def pull_progress(event: PullProgress) -> Json:
    return {
        "timestamp": event.timestamp,
        "data": {
            "source_uri": event.source_uri,
            "phase": event.phase,
            "bytes_done": event.bytes_done,
            "bytes_total": event.bytes_total,
            "speed_bps": event.speed_bps,
        },
    }
