"""Shapes of the system and instance calls, for checking what comes in and documenting what goes out."""

from collections.abc import Mapping
from typing import Any

from marshmallow import EXCLUDE, INCLUDE, Schema, ValidationError, fields, post_load, pre_load, validate

from solarhost.instances.record import BESIDE_CONFIG
from solarhost.instances.status import Reason, Status

OWNER = validate.Length(max=200)
PRIORITIES = ("production", "staging", "ephemeral")


class GpuId(fields.Field[Any]):
    """An index, or the UUID of a GPU or MIG device."""

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> int | str:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 4096:
            return value
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 5:
            return int(value)
        if (
            isinstance(value, str)
            and value.startswith(("GPU-", "MIG-"))
            and value.isascii()
            and "," not in value
        ):
            return value
        raise ValidationError("Not a GPU index, nor a UUID that starts with GPU- or MIG-.")


def _distinct(values: list[Any]) -> None:
    if len(set(values)) != len(values):
        raise ValidationError("Names a device twice.")


class Detail(Schema):
    detail = fields.Str(required=True, metadata={"description": "One sentence."})


class Invalid(Detail):
    errors = fields.Dict(
        keys=fields.Str(), values=fields.List(fields.Str()), metadata={"description": "By field."}
    )


class StartFailure(Detail):
    instance_id = fields.Str()
    exit_code = fields.Int(allow_none=True)
    log_tail = fields.List(fields.Str(), metadata={"description": "The last lines of its log."})


class BesideConfig(Schema):
    class Meta:
        unknown = EXCLUDE

    managed_by = fields.Str(allow_none=True, validate=OWNER)
    intent_id = fields.Str(allow_none=True, validate=OWNER)
    priority = fields.Str(validate=validate.OneOf(PRIORITIES))
    gpu_ids = fields.List(GpuId(), allow_none=True, validate=[validate.Length(min=1, max=64), _distinct])
    vram_gb = fields.Float(
        allow_none=True,
        validate=validate.Range(min=0, max=1_000_000),
        metadata={"description": "GiB that it takes on each of its GPUs."},
    )

    @post_load
    def freeze(self, data: dict[str, Any], **_: Any) -> dict[str, Any]:
        """As a record keeps them."""
        return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}


class InstanceCreate(BesideConfig):
    """A body without `config` is taken as the config itself."""

    config = fields.Dict(required=True, metadata={"description": "The backend's configuration."})

    @pre_load
    def accept_flat(self, data: Any, **_: Any) -> Any:
        if not isinstance(data, Mapping) or "config" in data:
            return data
        beside = {key: data[key] for key in BESIDE_CONFIG if key in data}
        return {**beside, "config": {key: value for key, value in data.items() if key not in beside}}


class InstanceUpdate(BesideConfig):
    """Only keys that are present are applied; null clears one."""

    config = fields.Dict()


class Instance(Schema):
    id = fields.Str(required=True)
    config = fields.Dict(required=True)
    status = fields.Enum(Status, by_value=True, required=True)
    port = fields.Int(allow_none=True, metadata={"description": "While it has a process."})
    pid = fields.Int(allow_none=True)
    created_at = fields.DateTime(required=True)
    started_at = fields.DateTime(allow_none=True)
    error_message = fields.Str(allow_none=True)
    retry_count = fields.Int()
    priority = fields.Str(validate=validate.OneOf(PRIORITIES))
    managed_by = fields.Str(allow_none=True)
    intent_id = fields.Str(allow_none=True)
    supported_endpoints = fields.List(fields.Str(), required=True)
    served_model_name = fields.Str()
    context_size = fields.Int(allow_none=True)
    capabilities = fields.List(fields.Str(), allow_none=True)
    gpu_ids = fields.List(fields.Raw(), allow_none=True)
    vram_gb = fields.Float(allow_none=True)
    reason = fields.Enum(Reason, by_value=True, allow_none=True)
    exit_code = fields.Int(allow_none=True, metadata={"description": "Of the last child that ended."})
    signal = fields.Str(allow_none=True)
    run = fields.Int(metadata={"description": "How often a child was started."})
    adopted = fields.Bool(metadata={"description": "Its process was started by an earlier agent."})


class InstanceAnswer(Schema):
    instance = fields.Nested(Instance, required=True)
    message = fields.Str(required=True)
    warnings = fields.List(fields.Str())


class RuntimeState(Schema):
    instance_id = fields.Str()
    busy = fields.Bool()
    phase = fields.Str(validate=validate.OneOf(["idle", "prefill", "generating"]))
    prefill_progress = fields.Float(allow_none=True)
    active_slots = fields.Int()
    slot_id = fields.Int(allow_none=True)
    task_id = fields.Raw(allow_none=True)
    prefill_prompt_tokens = fields.Int(allow_none=True)
    generated_tokens = fields.Int(allow_none=True)
    decode_tps = fields.Float(allow_none=True)
    decode_ms_per_token = fields.Float(allow_none=True)
    checkpoint_index = fields.Int(allow_none=True)
    checkpoint_total = fields.Int(allow_none=True)
    timestamp = fields.DateTime()


class Generation(Schema):
    instance_id = fields.Str()
    slot_id = fields.Int(allow_none=True)
    task_id = fields.Raw(allow_none=True)
    prompt_tokens = fields.Int()
    generated_tokens = fields.Int()
    cached_tokens = fields.Int()
    prompt_eval_tokens = fields.Int()
    total_tokens = fields.Int()
    decode_tps = fields.Float(allow_none=True)
    decode_ms_per_token = fields.Float(allow_none=True)
    source = fields.Str(validate=validate.OneOf(["usage", "metrics", "log"]))
    started_at = fields.DateTime(allow_none=True)
    finished_at = fields.DateTime(allow_none=True)


class UsageSnapshot(Schema):
    instance_id = fields.Str()
    backend_type = fields.Str()
    prompt_tokens_total = fields.Int(allow_none=True)
    generated_tokens_total = fields.Int(allow_none=True)
    cached_tokens_total = fields.Int(allow_none=True)
    requests_processing = fields.Int(allow_none=True)
    requests_deferred = fields.Int(allow_none=True)
    kv_cache_usage_ratio = fields.Float(allow_none=True)
    timestamp = fields.DateTime()


class LogEntry(Schema):
    seq = fields.Int(required=True)
    timestamp = fields.DateTime(required=True)
    line = fields.Str(required=True)


class LogQuery(Schema):
    class Meta:
        unknown = INCLUDE

    tail = fields.Int(
        validate=validate.Range(0, 1_000_000), metadata={"description": "At most so many, the newest."}
    )
    since = fields.Int(
        validate=validate.Range(-1, 2**63 - 1), metadata={"description": "Only lines after this `seq`."}
    )
    run = fields.Int(
        validate=validate.Range(1, 2**31), metadata={"description": "Read the file of this run."}
    )


class GenerationQuery(Schema):
    class Meta:
        unknown = INCLUDE

    after = fields.Str(metadata={"description": "ISO 8601 time; only a generation that ended later counts."})
    within_s = fields.Float(
        validate=validate.Range(0, 1e9),
        metadata={"description": "Only one that ended in the last so many seconds."},
    )


class Disk(Schema):
    total_gb = fields.Float(allow_none=True)
    used_gb = fields.Float(allow_none=True)
    available_gb = fields.Float(allow_none=True)


class Memory(Disk):
    percent = fields.Float(allow_none=True)
    memory_type = fields.Str()


class Health(Schema):
    status = fields.Str(validate=validate.OneOf(["healthy", "degraded"]), required=True)
    service = fields.Str(required=True)
    version = fields.Str(required=True)
    disk = fields.Nested(Disk, required=True)
    memory = fields.List(fields.Nested(Memory), required=True)
    problems = fields.List(fields.Str())
    control = fields.Dict(metadata={"description": "The link to solar-control."})


class About(Schema):
    service = fields.Str(required=True)
    version = fields.Str(required=True)
    description = fields.Str(required=True)
    supported_backends = fields.List(fields.Str(), required=True)


class Reconnect(Schema):
    status = fields.Str(validate=validate.OneOf(["already_connected", "reconnecting"]), required=True)
