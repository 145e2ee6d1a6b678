"""REST calls on the host itself."""

from flask import Response, jsonify

from solarhost import __version__, metrics
from solarhost.api import schemas
from solarhost.api.bodies import Blueprint
from solarhost.host import Host

DESCRIPTION = "Runs, watches and accounts for model servers on one machine"


def blueprint(host: Host) -> Blueprint:
    blp = Blueprint("system", __name__, description="The host itself.")

    @blp.route("/", methods=["GET"])
    @blp.doc(security=[])
    @blp.alt_response(200, schema=schemas.About, description="What this is.", success=True)
    def about() -> Response:
        """What this is"""
        return jsonify(
            {
                "service": "solar-host",
                "version": __version__,
                "description": DESCRIPTION,
                "supported_backends": host.backends.types,
            }
        )

    @blp.route("/health", methods=["GET"])
    @blp.doc(security=[])
    @blp.alt_response(
        200, schema=schemas.Health, description="Healthy, or degraded with its problems.", success=True
    )
    def health() -> Response:
        """Whether all is well, disk and memory"""
        return jsonify(host.health())

    @blp.route("/memory", methods=["GET"])
    @blp.alt_response(
        200, schema=schemas.Memory, description="VRAM if there is an NVIDIA GPU, else RAM.", success=True
    )
    @blp.alt_response(503, schema=schemas.Detail, description="It can't be read.")
    def memory() -> Response:
        """Memory in use"""
        return jsonify(host.resources.memory())

    @blp.route("/reconnect", methods=["POST"])
    @blp.alt_response(
        200, schema=schemas.Reconnect, description="The link is up, or being made now.", success=True
    )
    @blp.alt_response(503, schema=schemas.Detail, description="No solar-control is configured.")
    def reconnect() -> Response:
        """Connect to solar-control now"""
        return jsonify({"status": host.link.reconnect()})

    made = metrics.registry(host)

    @blp.route("/metrics", methods=["GET"])
    @blp.alt_response(
        200,
        schema={"type": "string"},
        content_type="text/plain",
        description="For Prometheus: instances, tokens, logs, resources, the link, threads.",
        success=True,
    )
    def read_metrics() -> Response:
        """Metrics for Prometheus"""
        return Response(metrics.render(made), content_type=metrics.CONTENT_TYPE)

    return blp
