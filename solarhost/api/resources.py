"""REST calls on resources and reservations."""

from collections.abc import Mapping
from datetime import UTC, timedelta
from typing import Any

from flask import Response, jsonify
from marshmallow import EXCLUDE, Schema, ValidationError, fields, validate, validates_schema

from solarhost.api import schemas
from solarhost.api.bodies import Blueprint
from solarhost.resources.allocation import Need
from solarhost.resources.readings import GIB
from solarhost.resources.service import Ask, Resources
from solarhost.times import now

MAX_GB = 1_000_000
MAX_TTL_S = 10 * 365 * 86400
WORKLOADS = ("training", "inference", "other")


class ReservationRequest(Schema):
    class Meta:
        unknown = EXCLUDE

    job_id = fields.Str(required=True, validate=validate.Length(1, 200))
    workload_type = fields.Str(load_default="training", validate=validate.OneOf(WORKLOADS))
    requester = fields.Str(load_default=None, allow_none=True, validate=validate.Length(max=200))
    vram_gb = fields.Float(
        load_default=0.0,
        validate=validate.Range(0, MAX_GB),
        metadata={"description": "GiB on each GPU; on a host without GPUs it is RAM."},
    )
    ram_gb = fields.Float(load_default=0.0, validate=validate.Range(0, MAX_GB))
    disk_gb = fields.Float(load_default=0.0, allow_none=True, validate=validate.Range(0, MAX_GB))
    gpu_count = fields.Int(load_default=1, strict=True, validate=validate.Range(1, 1024))
    gpu_ids = fields.List(
        schemas.GpuId(),
        load_default=None,
        allow_none=True,
        validate=validate.Length(1, 1024),
        metadata={"description": "As many as `gpu_count`; without it the GPUs with most room are chosen."},
    )
    ttl_seconds = fields.Float(
        load_default=None,
        allow_none=True,
        validate=validate.Range(0, MAX_TTL_S, min_inclusive=False),
        metadata={"description": "Life in seconds; not together with `expires_at`."},
    )
    expires_at = fields.AwareDateTime(load_default=None, allow_none=True, default_timezone=UTC)

    @validates_schema
    def _agree(self, body: Mapping[str, Any], **_: Any) -> None:
        if body["ttl_seconds"] is not None and body["expires_at"] is not None:
            raise ValidationError("Give ttl_seconds or expires_at, not both.", "ttl_seconds")
        if body["gpu_ids"] is None:
            return
        if len(body["gpu_ids"]) != body["gpu_count"]:
            raise ValidationError(
                f"Names {len(body['gpu_ids'])} GPUs, but gpu_count is {body['gpu_count']}.", "gpu_ids"
            )
        if len(set(body["gpu_ids"])) != len(body["gpu_ids"]):
            raise ValidationError("Names a GPU twice.", "gpu_ids")


class Dimension(Schema):
    """`reported = system_used + headroom`, `available = total - reported`; null when it can't be read."""

    total_gb = fields.Float(allow_none=True)
    system_used_gb = fields.Float(allow_none=True, metadata={"description": "As measured."})
    reserved_headroom_gb = fields.Float(metadata={"description": "Promised and not used yet."})
    reported_used_gb = fields.Float(allow_none=True)
    available_gb = fields.Float(allow_none=True)


class Reservation(Schema):
    id = fields.Str()
    job_id = fields.Str()
    workload_type = fields.Str()
    requester = fields.Str(allow_none=True)
    status = fields.Str(validate=validate.OneOf(("pending", "running")))
    vram_gb = fields.Float(metadata={"description": "On each GPU."})
    ram_gb = fields.Float()
    disk_gb = fields.Float()
    gpu_count = fields.Int()
    gpu_ids = fields.List(fields.Raw(metadata={"description": "Index, or UUID of a MIG instance."}))
    actual_vram_gb = fields.Float(allow_none=True, metadata={"description": "On all its GPUs together."})
    actual_ram_gb = fields.Float(allow_none=True)
    actual_disk_gb = fields.Float(allow_none=True)
    created_at = fields.AwareDateTime()
    expires_at = fields.AwareDateTime()


class Gpu(Schema):
    index = fields.Int()
    uuid = fields.Str(allow_none=True)
    name = fields.Str(allow_none=True)
    memory_type = fields.Str(metadata={"description": "`RAM` when it shares the memory of the machine."})
    total_gb = fields.Float(allow_none=True)
    used_gb = fields.Float(allow_none=True)
    reserved_headroom_gb = fields.Float()
    available_gb = fields.Float(allow_none=True)
    mig_parent = fields.Int(allow_none=True, metadata={"description": "GPU that it is a MIG instance of."})
    problem = fields.Str(allow_none=True, metadata={"description": "Why it can't be read."})


class InstanceCharge(Schema):
    instance_id = fields.Str()
    vram_gb = fields.Float()
    gpu_ids = fields.List(fields.Raw())
    actual_vram_gb = fields.Float(allow_none=True)
    actual_ram_gb = fields.Float(allow_none=True)


class Telemetry(Schema):
    gpu = fields.Str(validate=validate.OneOf(("ok", "none", "unreadable")))
    gpu_problem = fields.Str(allow_none=True)
    age_s = fields.Dict(keys=fields.Str(), values=fields.Float(allow_none=True))


class Snapshot(Schema):
    memory_type = fields.Str(validate=validate.OneOf(("VRAM", "RAM")))
    vram = fields.Nested(Dimension, allow_none=True)
    ram = fields.Nested(Dimension)
    disk = fields.Nested(Dimension)
    gpus = fields.List(fields.Nested(Gpu))
    reservations = fields.List(fields.Nested(Reservation))
    instance_charges = fields.List(fields.Nested(InstanceCharge))
    telemetry = fields.Nested(Telemetry)


class Exceeded(schemas.Detail):
    error = fields.Str(metadata={"description": "`capacity_exceeded`"})
    dimension = fields.Str(validate=validate.OneOf(("vram", "ram", "disk")))
    requested_gb = fields.Float()
    available_gb = fields.Float()
    device_index = fields.Raw(metadata={"description": "The GPU that is short, where one is."})


class Unknowable(schemas.Detail):
    error = fields.Str(metadata={"description": "`telemetry_unavailable`"})
    dimension = fields.Str()


class Released(Schema):
    detail = fields.Str(metadata={"description": "`released`"})
    id = fields.Str()


def blueprint(service: Resources) -> Blueprint:
    blp = Blueprint("resources", __name__, description="What the host has, uses and has promised.")

    @blp.route("/resources", methods=["GET"])
    @blp.alt_response(200, schema=Snapshot, description="The newest snapshot.", success=True)
    def get_resources() -> Response:
        """Read capacity, use and reservations"""
        return Response(service.snapshot_bytes(), mimetype="application/json")

    @blp.route("/resources/reservations", methods=["POST"])
    @blp.arguments(ReservationRequest)
    @blp.alt_response(201, schema=Reservation, description="It is promised.", success=True)
    @blp.alt_response(409, schema=Exceeded, description="It does not fit; nothing is promised.")
    @blp.alt_response(422, schema=schemas.Invalid, description="A field is missing or out of range.")
    @blp.alt_response(503, schema=Unknowable, description="What is free can't be known now.")
    def create_reservation(body: dict[str, Any]) -> tuple[Response, int]:
        """Promise GPU memory, RAM and disk to a job"""
        return jsonify(service.reserve(_ask(body))), 201

    @blp.route("/resources/reservations/<reservation_id>", methods=["DELETE"])
    @blp.alt_response(200, schema=Released, description="It is given back.", success=True)
    @blp.alt_response(404, schema=schemas.Detail, description="There is no such reservation.")
    @blp.alt_response(409, schema=schemas.Detail, description="Its job is running.")
    def release_reservation(reservation_id: str) -> Response:
        """Give a reservation back"""
        service.release(reservation_id)
        return jsonify({"detail": "released", "id": reservation_id})

    return blp


def _ask(body: Mapping[str, Any]) -> Ask:
    ttl = body["ttl_seconds"]
    return Ask(
        job_id=body["job_id"],
        workload_type=body["workload_type"],
        requester=body["requester"],
        expires_at=body["expires_at"] if ttl is None else now() + timedelta(seconds=ttl),
        need=Need(
            vram=round(body["vram_gb"] * GIB),
            ram=round(body["ram_gb"] * GIB),
            disk=round((body["disk_gb"] or 0) * GIB),
            gpu_count=body["gpu_count"],
            gpu_ids=body["gpu_ids"],
        ),
    )
