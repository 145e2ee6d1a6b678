"""REST calls on models: what is on disk, pulls, deletion."""

from typing import Any

from marshmallow import EXCLUDE, Schema, ValidationError, fields, validate, validates_schema

from solarhost.api import schemas
from solarhost.api.bodies import Blueprint
from solarhost.modelstore.failures import STATUS
from solarhost.modelstore.store import ModelStore
from solarhost.places import Places

_pattern = fields.Str(validate=validate.Length(1, 512))


class ModelFile(Schema):
    name = fields.Str(metadata={"description": "Relative to the model's folder."})
    size_bytes = fields.Int()


class Model(Schema):
    name = fields.Str(metadata={"description": "Its folder in the models folder; `DELETE` takes it."})
    path = fields.Str()
    size_bytes = fields.Int()
    source_uri = fields.Str()
    checksum = fields.Str(allow_none=True)
    digest = fields.Str(allow_none=True)
    downloaded_at = fields.Str()
    category = fields.Str(allow_none=True)
    model_name = fields.Str(allow_none=True)
    version = fields.Str(allow_none=True)
    metadata = fields.Dict()
    file_filters = fields.List(fields.Str(), allow_none=True)
    files = fields.List(fields.Nested(ModelFile))


class PullRequest(Schema):
    class Meta:
        unknown = EXCLUDE

    source = fields.Str(required=True, validate=validate.OneOf(("harbor", "huggingface")))
    source_uri = fields.Str(
        required=True,
        validate=validate.Length(1, 1024),
        metadata={"description": "`repo://name:version[/file]` or `huggingface://org/model`."},
    )
    harbor_ref = fields.Str(
        load_default=None,
        allow_none=True,
        validate=validate.Length(1, 512),
        metadata={"description": "Where the artifact is: `[registry/]project/name:tag` or `…@sha256:…`."},
    )
    model_id = fields.Str(load_default=None, allow_none=True, validate=validate.Length(1, 200))
    digest = fields.Str(load_default=None, allow_none=True, validate=validate.Length(max=200))
    size_bytes = fields.Int(load_default=None, allow_none=True, validate=validate.Range(0))
    category = fields.Str(load_default=None, allow_none=True, validate=validate.Length(max=200))
    name = fields.Str(load_default=None, allow_none=True, validate=validate.Length(max=500))
    version = fields.Str(load_default=None, allow_none=True, validate=validate.Length(max=200))
    checksum = fields.Str(load_default=None, allow_none=True, validate=validate.Length(max=200))
    metadata = fields.Dict(load_default=None, allow_none=True)
    backend_type = fields.Str(load_default=None, allow_none=True, validate=validate.Length(max=100))
    file_filters = fields.List(
        _pattern,
        load_default=None,
        allow_none=True,
        validate=validate.Length(max=200),
        metadata={"description": "Patterns of the files wanted from the hub; an artifact comes whole."},
    )

    @validates_schema
    def _has_reference(self, body: dict[str, Any], **_: Any) -> None:
        needed = "harbor_ref" if body["source"] == "harbor" else "model_id"
        if body[needed] is None:
            raise ValidationError(f"Required for source {body['source']}.", needed)


class PullAnswer(Schema):
    path = fields.Str(metadata={"description": "Folder of the model, or the file in it that was asked for."})
    cached = fields.Bool(metadata={"description": "Nothing had to be downloaded."})
    source_uri = fields.Str()


class PullFailure(Schema):
    error = fields.Str(validate=validate.OneOf([*STATUS]))
    detail = fields.Str()
    source_uri = fields.Str()
    status_code = fields.Int()


class RunningPull(Schema):
    id = fields.Str()
    source_uri = fields.Str()
    phase = fields.Str(
        validate=validate.OneOf(("queued", "resolving", "downloading", "verifying", "finalizing"))
    )
    queue_position = fields.Int(
        allow_none=True, metadata={"description": "Pulls that have to end before it begins."}
    )
    bytes_done = fields.Int(metadata={"description": "Of the files that were selected; it never falls."})
    bytes_total = fields.Int(allow_none=True)
    speed_bps = fields.Float(allow_none=True, metadata={"description": "Bytes per second, lately."})
    trouble = fields.Str(
        allow_none=True, metadata={"description": "Why it waits before its next try; null while it goes on."}
    )
    started_at = fields.Str()
    file_filters = fields.List(fields.Str(), allow_none=True)


class Cancelled(Schema):
    detail = fields.Str()
    id = fields.Str()
    source_uri = fields.Str()


class DeleteRequest(Schema):
    class Meta:
        unknown = EXCLUDE

    filters = fields.List(
        _pattern,
        load_default=None,
        allow_none=True,
        validate=validate.Length(max=1000),
        metadata={"description": "Delete only files that match one of these patterns."},
    )


class Deleted(Schema):
    detail = fields.Str()
    name = fields.Str()
    removed = fields.List(fields.Str())
    freed_bytes = fields.Int()
    remaining = fields.Int(metadata={"description": "Files that are still there."})


def blueprint(store: ModelStore, places: Places) -> Blueprint:
    """`/models`, `/models/pull`, `/models/pulls`."""
    blp = Blueprint("models", __name__, description="Models on disk, and pulls of further ones.")

    @blp.route("/models")
    @blp.response(200, Model(many=True))
    def list_models() -> Any:
        """The models on this host, as the manifest has them"""
        return store.list()

    @blp.route("/models/pull", methods=["POST"])
    @blp.arguments(PullRequest)
    @blp.response(200, PullAnswer)
    @blp.alt_response(
        400,
        schema=PullFailure,
        description="`invalid_request`: scheme and source disagree, or a malformed URI.",
    )
    @blp.alt_response(
        401, schema=PullFailure, description="`auth_failed`: the source refused us, or a gated repository."
    )
    @blp.alt_response(
        404, schema=PullFailure, description="`not_found`: no such model or file, or no GGUF for llama.cpp."
    )
    @blp.alt_response(422, schema=schemas.Invalid, description="A field is missing or out of range.")
    @blp.alt_response(500, schema=PullFailure, description="`credentials_missing` or `model_pull_failed`.")
    @blp.alt_response(
        502,
        schema=PullFailure,
        description="`source_unreachable`, or `model_pull_failed`: other bytes than announced.",
    )
    @blp.alt_response(503, schema=schemas.Detail, description="No request thread is free for waiting.")
    @blp.alt_response(507, schema=PullFailure, description="`insufficient_storage`.")
    def pull_model(body: dict[str, Any]) -> Any:
        """Pull a model, unless it is here; answers once it is on disk

        Requests for the same model share one download.
        """
        labels = {
            name: body[name] for name in ("digest", "category", "name", "version", "checksum", "metadata")
        }
        with places.hold():
            return store.pull(
                source=body["source"],
                source_uri=body["source_uri"],
                reference=body["harbor_ref"] if body["source"] == "harbor" else body["model_id"],
                filters=body["file_filters"],
                backend_type=body["backend_type"],
                size_bytes=body["size_bytes"],
                labels=labels,
            )

    @blp.route("/models/pulls")
    @blp.response(200, RunningPull(many=True))
    def list_pulls() -> Any:
        """The pulls that run or wait, oldest first"""
        return store.pulls()

    @blp.route("/models/pulls/<pull_id>", methods=["DELETE"])
    @blp.response(200, Cancelled)
    @blp.alt_response(404, schema=schemas.Detail, description="No such pull is running or waiting.")
    @blp.alt_response(409, schema=schemas.Detail, description="It was complete before it could be stopped.")
    def cancel_pull(pull_id: str) -> Any:
        """Cancel a pull; answers once its traffic has ended and its disk is given back"""
        return {"detail": "cancelled", "id": pull_id, "source_uri": store.cancel(pull_id)}

    @blp.route("/models/<name>", methods=["DELETE"])
    @blp.arguments(DeleteRequest, required=False)
    @blp.response(200, Deleted)
    @blp.alt_response(404, schema=schemas.Detail, description="No such model on this host.")
    @blp.alt_response(409, schema=schemas.Detail, description="An instance uses it, or it is being pulled.")
    def delete_model(body: dict[str, Any], name: str) -> Any:
        """Delete a model, or some of its files"""
        return store.delete(name, body["filters"])

    return blp
