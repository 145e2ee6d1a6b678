"""The Flask application over a host."""

from flask import Flask, Response, request
from werkzeug.exceptions import UnsupportedMediaType

from solarhost import streams
from solarhost.api import auth, errors, instances, jobs, models, openapi, page, resources, system
from solarhost.api.ready import ReadyAnswers
from solarhost.host import Host
from solarhost.rest import InProcessRest

MAX_BODY_BYTES = 16 << 20


def create_app(host: Host) -> Flask:
    """Routes, authentication, error answers and documentation; starts nothing."""
    app = Flask("solarhost", static_folder=None)
    app.extensions["solarhost"] = host
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.json.sort_keys = False  # type: ignore[attr-defined]
    keys = auth.KeyRing(host.settings.accepted_keys)
    auth.register(app, keys)
    errors.register(app)
    app.before_request(_require_json)
    app.after_request(_allow_any_origin)
    api = openapi.register(app)
    for blueprint in (
        system.blueprint(host),
        instances.blueprint(host.instances, host.logs, host.places),
        models.blueprint(host.models, host.places),
        resources.blueprint(host.resources),
        jobs.blueprint(host.jobs, host.places),
    ):
        api.register_blueprint(blueprint)
    app.register_blueprint(page.blueprint())
    host.connect_rest(InProcessRest(app, host.settings.accepted_keys[0]))
    streams.register(app, host)
    ready = {"/instances": host.instances.listing, "/resources": host.resources.snapshot_bytes}
    app.wsgi_app = ReadyAnswers(app.wsgi_app, keys, ready)  # type: ignore[method-assign]
    return app


def _require_json() -> None:
    """A body of another kind would be taken for no body at all."""
    has_body = request.content_length or request.headers.get("Transfer-Encoding")
    if has_body and request.method in ("POST", "PUT", "PATCH", "DELETE") and not request.is_json:
        raise UnsupportedMediaType("send JSON, with Content-Type: application/json")


def _allow_any_origin(response: Response) -> Response:
    headers = response.headers
    headers["Access-Control-Allow-Origin"] = "*"
    if request.method == "OPTIONS":
        headers["Access-Control-Allow-Methods"] = "GET, POST, PUT, DELETE, OPTIONS"
        headers["Access-Control-Allow-Headers"] = "Authorization, Content-Type, X-API-Key"
        headers["Access-Control-Max-Age"] = "600"
    return response
