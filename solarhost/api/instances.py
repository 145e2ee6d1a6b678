"""REST calls on instances."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from flask import Response, jsonify

from solarhost.api import schemas
from solarhost.api.bodies import Blueprint
from solarhost.errors import NotFound, SolarHostError
from solarhost.instances.record import NewInstance
from solarhost.instances.service import Instances
from solarhost.logs.book import LogBook
from solarhost.places import Places

UNKNOWN = {"schema": schemas.Detail, "description": "There is no such instance."}
INVALID = {"schema": schemas.Invalid, "description": "A field is missing, of the wrong type or out of range."}
NOT_SETTLED = {"schema": schemas.Detail, "description": "It is neither stopped nor failed."}
NO_PLACE = {"schema": schemas.Detail, "description": "Too many calls wait already; see `Retry-After`."}
START_FAILED = {
    "schema": schemas.StartFailure,
    "description": "It did not become ready; the tail of its log says why.",
}
ANSWER = {"schema": schemas.InstanceAnswer, "description": "The instance as it is now."}


class BadTime(SolarHostError):
    status = 400


def blueprint(instances: Instances, logs: LogBook, places: Places) -> Blueprint:
    blp = Blueprint("instances", __name__, description="Model servers: create, start, watch, stop.")

    @blp.route("/instances", methods=["GET"])
    @blp.alt_response(200, schema=schemas.Instance(many=True), description="All instances.", success=True)
    def list_instances() -> Response:
        """List all instances"""
        return Response(instances.listing(), mimetype="application/json")

    @blp.route("/instances", methods=["POST"])
    @blp.arguments(schemas.InstanceCreate)
    @blp.alt_response(200, **ANSWER, success=True)
    @blp.alt_response(422, **INVALID)
    def create(body: dict[str, Any]) -> Response:
        """Create an instance; it is not started"""
        made, warnings = instances.create(NewInstance(**body))
        return jsonify({"instance": made, "message": f"Instance {made['id']} created", "warnings": warnings})

    @blp.route("/instances/<instance_id>", methods=["GET"])
    @blp.alt_response(200, schema=schemas.Instance, description="The instance.", success=True)
    @blp.alt_response(404, **UNKNOWN)
    def get(instance_id: str) -> Response:
        """Read one instance"""
        return jsonify(instances.get(instance_id))

    @blp.route("/instances/<instance_id>", methods=["PUT"])
    @blp.arguments(schemas.InstanceUpdate)
    @blp.alt_response(200, **ANSWER, success=True)
    @blp.alt_response(400, **NOT_SETTLED)
    @blp.alt_response(404, **UNKNOWN)
    @blp.alt_response(422, **INVALID)
    def update(body: dict[str, Any], instance_id: str) -> Response:
        """Change the config of a stopped or failed instance, or what it has beside it"""
        changed, warnings = instances.update(instance_id, body)
        return jsonify(
            {"instance": changed, "message": f"Instance {instance_id} updated", "warnings": warnings}
        )

    @blp.route("/instances/<instance_id>", methods=["DELETE"])
    @blp.alt_response(200, **ANSWER, success=True)
    @blp.alt_response(400, **NOT_SETTLED)
    @blp.alt_response(404, **UNKNOWN)
    def delete(instance_id: str) -> Response:
        """Delete a stopped or failed instance; its log files stay for their retention time"""
        return _done(instances.delete(instance_id), "deleted")

    @blp.route("/instances/<instance_id>/start", methods=["POST"])
    @blp.alt_response(200, **ANSWER, success=True)
    @blp.alt_response(404, **UNKNOWN)
    @blp.alt_response(500, **START_FAILED)
    @blp.alt_response(503, **NO_PLACE)
    def start(instance_id: str) -> Response:
        """Start it, and answer once it is ready or has failed"""
        with places.hold():
            instances.find(instance_id).start()
        return _done(instances.get(instance_id), "started", instances.unwritten())

    @blp.route("/instances/<instance_id>/stop", methods=["POST"])
    @blp.alt_response(200, **ANSWER, success=True)
    @blp.alt_response(404, **UNKNOWN)
    @blp.alt_response(500, schema=schemas.Detail, description="A process survived SIGKILL.")
    @blp.alt_response(503, **NO_PLACE)
    def stop(instance_id: str) -> Response:
        """Stop it, and answer once none of its processes is alive"""
        with places.hold():
            instances.find(instance_id).stop()
        return _done(instances.get(instance_id), "stopped", instances.unwritten())

    @blp.route("/instances/<instance_id>/restart", methods=["POST"])
    @blp.alt_response(200, **ANSWER, success=True)
    @blp.alt_response(404, **UNKNOWN)
    @blp.alt_response(500, **START_FAILED)
    @blp.alt_response(503, **NO_PLACE)
    def restart(instance_id: str) -> Response:
        """Stop it if it runs, then start it"""
        with places.hold():
            instances.find(instance_id).restart()
        return _done(instances.get(instance_id), "restarted", instances.unwritten())

    @blp.route("/instances/<instance_id>/state", methods=["GET"])
    @blp.alt_response(
        200, schema=schemas.RuntimeState, description="What it is doing right now.", success=True
    )
    @blp.alt_response(404, **UNKNOWN)
    def state(instance_id: str) -> Response:
        """Read its runtime state"""
        return jsonify(instances.state(instance_id))

    @blp.route("/instances/<instance_id>/logs", methods=["GET"])
    @blp.arguments(schemas.LogQuery, location="query")
    @blp.alt_response(200, schema=schemas.LogEntry(many=True), description="Oldest first.", success=True)
    @blp.alt_response(
        404, description="There is neither such an instance nor a log file of it.", schema=schemas.Detail
    )
    @blp.alt_response(422, **INVALID)
    def read_logs(query: dict[str, Any], instance_id: str) -> Response:
        """Read its log, also of an instance that was deleted"""
        try:
            lines = logs.read(
                instance_id, tail=query.get("tail"), since=query.get("since"), run=query.get("run")
            )
        except NotFound:
            instances.find(instance_id)  # a known one that never ran has an empty log
            if "run" in query:
                raise
            lines = []
        return jsonify([line.as_json() for line in lines])

    @blp.route("/instances/<instance_id>/last-generation", methods=["GET"])
    @blp.arguments(schemas.GenerationQuery, location="query")
    @blp.alt_response(
        200, schema=schemas.Generation, description="The newest finished request.", success=True
    )
    @blp.alt_response(400, schema=schemas.Detail, description="`after` is not an ISO 8601 time.")
    @blp.alt_response(
        404, schema=schemas.Detail, description="No such instance, or nothing finished in that time."
    )
    @blp.alt_response(422, **INVALID)
    def last_generation(query: dict[str, Any], instance_id: str) -> Response:
        """Token counts and speed of its newest finished request"""
        after = _time(query["after"]) if "after" in query else None
        return jsonify(instances.last_generation(instance_id, after, query.get("within_s")))

    @blp.route("/instances/<instance_id>/usage", methods=["GET"])
    @blp.alt_response(200, schema=schemas.UsageSnapshot, description="Its counters.", success=True)
    @blp.alt_response(404, **UNKNOWN)
    def usage(instance_id: str) -> Response:
        """Counters of its server since that started"""
        return jsonify(instances.usage(instance_id))

    return blp


def _done(instance: dict[str, Any], what: str, warnings: Sequence[str] = ()) -> Response:
    answer = {"instance": instance, "message": f"Instance {instance['id']} {what}"}
    return jsonify(answer | {"warnings": warnings} if warnings else answer)


def _time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text.replace(" ", "+"))  # a bare + in a query means a blank
    except ValueError as error:
        raise BadTime(f"after={text!r} is not an ISO 8601 time, such as 2026-01-31T12:00:00+00:00") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
