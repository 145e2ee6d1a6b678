"""REST calls on jobs; solar-control is the caller they are made for."""

from collections.abc import Mapping
from typing import Any

from flask import Response, jsonify
from marshmallow import EXCLUDE, Schema, ValidationError, fields, validate

from solarhost.api import schemas
from solarhost.api.bodies import Blueprint
from solarhost.jobs.definitions import parse
from solarhost.jobs.records import Job, Status
from solarhost.jobs.service import JobService
from solarhost.places import Places

MAX_STEPS = 100
MAX_RETENTION_HOURS = 10 * 365 * 24
STATUS = validate.OneOf([str(status) for status in Status])


def _short() -> validate.Length:
    return validate.Length(max=1000)


class Command(fields.Field[Any]):
    """A list of words, or one string that is split as a shell would."""

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> Any:
        words = [value] if isinstance(value, str) else value
        if not isinstance(words, list) or not all(
            isinstance(word, str) and "\0" not in word for word in words
        ):
            raise ValidationError("Neither a string nor a list of strings.")
        return value


class GpuRequest(Schema):
    """At least one of the two; `device_ids` comes first."""

    class Meta:
        unknown = EXCLUDE

    count = fields.Int(strict=True, allow_none=True, metadata={"description": "1 or more, or -1 for all."})
    device_ids = fields.List(
        fields.Str(validate=_short()),
        allow_none=True,
        validate=validate.Length(max=1024),
        metadata={"description": "Indices or UUIDs."},
    )


class StepRequest(Schema):
    class Meta:
        unknown = EXCLUDE

    name = fields.Str(required=True)
    image = fields.Str(required=True, validate=_short())
    command = Command(
        load_default=None,
        allow_none=True,
        metadata={
            "description": "List of words, or a string split as a shell would. Absent: the image's own.",
            "oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        },
    )
    environment = fields.Dict(keys=fields.Str(), values=fields.Str(), load_default=dict, allow_none=True)
    gpu = fields.Nested(GpuRequest, load_default=None, allow_none=True)
    is_preparation_step = fields.Bool(
        load_default=False,
        metadata={"description": "May write to `/workspace/models` and `/workspace/data`."},
    )


class JobRequest(Schema):
    class Meta:
        unknown = EXCLUDE

    job_id = fields.Str(
        required=True, metadata={"description": "Letters, digits, `.`, `_`, `-`; at most 128."}
    )
    name = fields.Str(required=True, validate=_short())
    steps = fields.List(fields.Nested(StepRequest), required=True, validate=validate.Length(max=MAX_STEPS))
    retention_hours = fields.Float(
        load_default=24.0,
        validate=validate.Range(0, MAX_RETENTION_HOURS),
        metadata={"description": "Hours that workspace and record stay after the end."},
    )
    min_free_disk_gb = fields.Float(
        load_default=None,
        allow_none=True,
        validate=validate.Range(0),
        metadata={"description": "Free disk (GiB) that each step needs; else the host's `MIN_FREE_DISK_GB`."},
    )
    base_model_uri = fields.Str(load_default=None, allow_none=True, validate=_short())
    training_data_uri = fields.Str(load_default=None, allow_none=True, validate=_short())
    training_config = fields.Dict(load_default=None, allow_none=True)
    model_selection = fields.Dict(load_default=None, allow_none=True)
    deployment = fields.Dict(load_default=None, allow_none=True)
    submission_id = fields.Str(load_default=None, allow_none=True, validate=_short())
    correlation_id = fields.Str(load_default=None, allow_none=True, validate=_short())


class Accepted(Schema):
    job_id = fields.Str()
    status = fields.Str(metadata={"description": "`running`, also while it waits for others; GET tells."})
    workspace_path = fields.Str()
    submission_id = fields.Str(allow_none=True)
    correlation_id = fields.Str(allow_none=True)


class StepLogEntry(schemas.LogEntry):
    stream = fields.Str(validate=validate.OneOf(("stdout", "stderr")))


class StepLogQuery(Schema):
    class Meta:
        unknown = EXCLUDE

    tail = fields.Int(
        load_default=1000,
        validate=validate.Range(0, 10_000),
        metadata={"description": "At most so many, the newest; fewer when they take over 8 MiB."},
    )
    since = fields.Int(
        load_default=0,
        validate=validate.Range(-1, 2**63 - 1),
        metadata={"description": "Only lines after this `seq`."},
    )


class StepLogLine(Schema):
    seq = fields.Int(metadata={"description": "Its number in the log file, from 1."})
    line = fields.Str()


class StepView(Schema):
    name = fields.Str()
    status = fields.Str(validate=STATUS)
    container_id = fields.Str(allow_none=True)
    started_at = fields.AwareDateTime(allow_none=True)
    finished_at = fields.AwareDateTime(allow_none=True)
    duration_s = fields.Float(allow_none=True)
    exit_code = fields.Int(allow_none=True)
    signal = fields.Int(allow_none=True, metadata={"description": "The signal that ended it."})
    oom_killed = fields.Bool(metadata={"description": "The kernel killed it for want of memory."})
    error_message = fields.Str(allow_none=True, metadata={"description": "Its last lines of stderr."})
    log_file = fields.Str(metadata={"description": "All it printed, on this host."})
    recent_logs = fields.List(fields.Nested(StepLogEntry), metadata={"description": "The last 100 lines."})


class JobBody(Schema):
    job_id = fields.Str()
    name = fields.Str()
    status = fields.Str(validate=STATUS)
    current_step_index = fields.Int()
    workspace_path = fields.Str()
    created_at = fields.AwareDateTime()
    started_at = fields.AwareDateTime(allow_none=True)
    finished_at = fields.AwareDateTime(allow_none=True)
    retention_hours = fields.Float()
    error_message = fields.Str(allow_none=True)
    submission_id = fields.Str(allow_none=True)
    correlation_id = fields.Str(allow_none=True)
    steps = fields.List(fields.Nested(StepView))


class JobRefusal(Schema):
    detail = fields.Raw(metadata={"description": "A sentence, or `{error, …}` with the values measured."})
    errors = fields.Dict(keys=fields.Str(), values=fields.List(fields.Str()))


class JobCancelled(Schema):
    detail = fields.Str(metadata={"description": "`cancelled`"})
    job_id = fields.Str()


def blueprint(service: JobService, places: Places) -> Blueprint:
    blp = Blueprint("jobs", __name__, description="Pipelines of containers.")

    @blp.route("/jobs", methods=["POST"])
    @blp.arguments(JobRequest)
    @blp.alt_response(202, schema=Accepted, description="It is on disk and will run.", success=True)
    @blp.alt_response(
        400,
        schema=JobRefusal,
        description="A name, step or GPU request breaks a rule; `gpu_unavailable`: more GPUs than there are.",
    )
    @blp.alt_response(409, schema=JobRefusal, description="The id, or its folder, is taken.")
    @blp.alt_response(422, schema=schemas.Invalid, description="A field is missing or of the wrong type.")
    @blp.alt_response(503, schema=JobRefusal, description="`executor_unavailable`: Docker is away.")
    @blp.alt_response(507, schema=JobRefusal, description="`insufficient_storage`")
    def submit_job(body: dict[str, Any]) -> tuple[Response, int]:
        """Submit a job"""
        job = service.submit(parse(body))
        return jsonify(
            {
                "job_id": job.id,
                "status": "running",
                "workspace_path": str(service.workspace(job.id)),
                "submission_id": job.definition.submission_id,
                "correlation_id": job.definition.correlation_id,
            }
        ), 202

    @blp.route("/jobs", methods=["GET"])
    @blp.alt_response(
        200, schema=JobBody(many=True), description="Oldest first, without log lines.", success=True
    )
    def list_jobs() -> Response:
        """List jobs"""
        return jsonify([_job(service, job, with_logs=False) for job in service.list()])

    @blp.route("/jobs/<job_id>", methods=["GET"])
    @blp.alt_response(200, schema=JobBody, description="The job as it is now.", success=True)
    @blp.alt_response(404, schema=JobRefusal, description="There is no such job.")
    def get_job(job_id: str) -> Response:
        """Inspect a job"""
        return jsonify(_job(service, service.get(job_id), with_logs=True))

    @blp.route("/jobs/<job_id>/steps/<step_name>/logs", methods=["GET"])
    @blp.arguments(StepLogQuery, location="query")
    @blp.alt_response(200, schema=StepLogLine(many=True), description="Oldest first.", success=True)
    @blp.alt_response(404, schema=JobRefusal, description="There is no such job, or no such step of it.")
    @blp.alt_response(422, schema=schemas.Invalid, description="A number is out of range.")
    def read_step_log(query: dict[str, int], job_id: str, step_name: str) -> Response:
        """Read the end of a step's log; a WebSocket at the same path sends all of it, then each new line"""
        part = service.logs.read(job_id, step_name, **query)
        return jsonify([{"seq": seq, "line": line} for seq, line in enumerate(part.lines, part.first_seq)])

    @blp.route("/jobs/<job_id>", methods=["DELETE"])
    @blp.alt_response(
        200,
        schema=JobCancelled,
        description="It has ended; its containers, workspace and record are gone.",
        success=True,
    )
    @blp.alt_response(404, schema=JobRefusal, description="There is no such job.")
    @blp.alt_response(409, schema=JobRefusal, description="It has ended by itself.")
    @blp.alt_response(503, schema=JobRefusal, description="It is cancelled, but not all of it is gone yet.")
    def cancel_job(job_id: str) -> Response:
        """Cancel a job"""
        with places.hold():
            service.cancel(job_id)
        return jsonify({"detail": "cancelled", "job_id": job_id})

    return blp


def _job(service: JobService, job: Job, *, with_logs: bool) -> Mapping[str, Any]:
    return {
        "job_id": job.id,
        "name": job.definition.name,
        "status": job.status,
        "current_step_index": job.current_step_index,
        "workspace_path": str(service.workspace(job.id)),
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "retention_hours": job.definition.retention_hours,
        "error_message": job.error_message,
        "submission_id": job.definition.submission_id,
        "correlation_id": job.definition.correlation_id,
        "steps": [_step(service, job, index, with_logs=with_logs) for index in range(len(job.steps))],
    }


def _step(service: JobService, job: Job, index: int, *, with_logs: bool) -> Mapping[str, Any]:
    step = job.steps[index]
    return {
        "name": step.name,
        "status": step.status,
        "container_id": step.container_id,
        "started_at": step.started_at,
        "finished_at": step.finished_at,
        "duration_s": step.duration_s,
        "exit_code": step.exit_code,
        "signal": step.signal,
        "oom_killed": step.oom_killed,
        "error_message": step.error_message,
        "log_file": str(service.logs.path(job, index)),
        "recent_logs": service.logs.recent(job, index) if with_logs else [],
    }
