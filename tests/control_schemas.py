"""JSON schemas of what solar-control reads from a host. Keys may be added, none may be missing."""

from typing import Any

TIME = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)$"}
TEXT = {"type": "string", "minLength": 1}
WHOLE = {"type": "integer", "minimum": 0}
NUMBER = {"type": "number"}
HOST_ID = {"type": ["string", "null"]}


def nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def entries(**properties: Any) -> dict[str, Any]:
    return record(entries={"type": "array", "minItems": 1, "items": record(**properties)})


FLAT_INSTANCE = {
    **record(
        id=TEXT,
        alias=TEXT,
        status={"enum": ["stopped", "starting", "running", "stopping", "failed"]},
        port=nullable(WHOLE),
        backend_type=TEXT,
        supported_endpoints={"type": "array", "items": TEXT},
        served_model_name=nullable(TEXT),
        context_size=nullable(WHOLE),
        ctx_size=nullable(WHOLE),
        capabilities=nullable({"type": "array", "items": TEXT}),
        priority={"enum": ["production", "staging", "ephemeral"]},
        managed_by=nullable(TEXT),
        intent_id=nullable(TEXT),
        gpu_ids=nullable({"type": "array"}),
        model_source=nullable(TEXT),
    ),
    "not": {"required": ["config"]},
}
INSTANCES = {"type": "array", "items": FLAT_INSTANCE}
ROLES = {"type": "array", "minItems": 1, "items": TEXT}
BACKENDS = {"type": "array", "minItems": 1, "items": TEXT}
GPU_TYPE = {"enum": ["nvidia_cuda", "apple_mps", "cpu"]}
DIMENSION = record(
    total_gb=NUMBER,
    system_used_gb=NUMBER,
    reserved_headroom_gb=NUMBER,
    reported_used_gb=NUMBER,
    available_gb=NUMBER,
)
RESOURCES = {
    "type": "object",
    "required": ["memory_type", "ram", "disk", "reservations"],
    "properties": {
        "memory_type": {"enum": ["VRAM", "RAM"]},
        "vram": nullable(DIMENSION),
        "ram": DIMENSION,
        "disk": DIMENSION,
        "reservations": {"type": "array"},
    },
}
MEMORY = record(
    used_gb=NUMBER,
    total_gb=NUMBER,
    available_gb=NUMBER,
    percent=NUMBER,
    memory_type={"enum": ["VRAM", "RAM"]},
)
STATE = record(
    busy={"type": "boolean"},
    phase={"enum": ["idle", "prefill", "generating"]},
    prefill_progress=nullable(NUMBER),
    active_slots=WHOLE,
    slot_id=nullable({"type": "integer"}),
    task_id=nullable({"type": "integer"}),
    prefill_prompt_tokens=nullable(WHOLE),
    generated_tokens=nullable(WHOLE),
    decode_tps=nullable(NUMBER),
    decode_ms_per_token=nullable(NUMBER),
    checkpoint_index=nullable(WHOLE),
    checkpoint_total=nullable(WHOLE),
)
PHASES = ["resolving", "downloading", "verifying", "finalizing", "completed", "failed"]


def job_event(status: str, **properties: Any) -> dict[str, Any]:
    return record(job_id=TEXT, host_id=HOST_ID, status={"const": status}, timestamp=TIME, **properties)


def step_event(status: str, **properties: Any) -> dict[str, Any]:
    return job_event(status, step_name=TEXT, step_index=WHOLE, **properties)


SCHEMAS: dict[str, dict[str, Any]] = {
    "registration": record(
        host_name=TEXT,
        instances=INSTANCES,
        roles=ROLES,
        gpu_type=GPU_TYPE,
        supported_backends=BACKENDS,
        version=TEXT,
    ),
    "instances_update": record(timestamp=TIME, data=record(instances=INSTANCES)),
    "host_health": record(
        timestamp=TIME,
        data=record(
            memory=MEMORY,
            gpu_type=GPU_TYPE,
            roles=ROLES,
            supported_backends=BACKENDS,
            instance_count=WHOLE,
            running_instance_count=WHOLE,
            version=TEXT,
            disk_total_gb=NUMBER,
            disk_used_gb=NUMBER,
            disk_available_gb=NUMBER,
            reservations=record(active_count=WHOLE, ram=DIMENSION, disk=DIMENSION),
            resources=RESOURCES,
        ),
    ),
    "log_batch": entries(instance_id=TEXT, seq=WHOLE, line={"type": "string"}, timestamp=TIME),
    "instance_state_batch": entries(instance_id=TEXT, timestamp=TIME, data=STATE),
    "step_log": entries(
        job_id=TEXT,
        step_name=TEXT,
        step_index=WHOLE,
        stream={"enum": ["stdout", "stderr"]},
        seq=WHOLE,
        timestamp=TIME,
        line={"type": "string"},
    ),
    "pull_progress": record(
        timestamp=TIME,
        data=record(
            source_uri=TEXT,
            phase={"enum": PHASES},
            bytes_done=WHOLE,
            bytes_total=nullable(WHOLE),
            speed_bps=nullable(NUMBER),
        ),
    ),
    "job_started": job_event("running", name=TEXT),
    "job_completed": job_event("completed", workspace_path=TEXT, retention_deadline=TIME),
    "job_failed": job_event("failed", error_message={"type": ["string", "null"]}),
    "job_cancelled": job_event("cancelled"),
    "step_started": step_event("running"),
    "step_completed": step_event("completed", duration_s=NUMBER, exit_code={"type": "integer"}),
    "step_failed": step_event(
        "failed",
        duration_s=NUMBER,
        exit_code={"type": ["integer", "null"]},
        error_summary={"type": ["string", "null"]},
    ),
}
