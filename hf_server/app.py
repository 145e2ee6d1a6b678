"""The Flask app: keys, errors, `/health`, `/metrics`, `/v1/models`, and the endpoints of the model type."""

import hmac
import logging
import uuid

from flask import Flask, Response, request
from gunicorn.http.errors import ParseException
from werkzeug.exceptions import HTTPException

from hf_server import chat, classify, completions, embeddings, render
from hf_server.errors import ApiError, BadRequest, BodyTooLarge, UnknownPath, WrongKey, WrongMethod
from hf_server.service import Service

_OPEN = ("/health",)

logger = logging.getLogger("hf_server")


def create_app(service: Service) -> Flask:
    """The app of one model; `service.start()` begins to load it."""
    app = Flask("hf_server", static_folder=None)
    app.extensions["hf_server"] = service
    app.config["MAX_CONTENT_LENGTH"] = service.options.max_body_bytes
    keys = [key.encode() for key in service.options.keys]

    @app.before_request
    def check_key() -> None:
        if keys and request.path not in _OPEN and not _is_known(_given_key(), keys):
            raise WrongKey("the API key is missing or wrong; send it as 'Authorization: Bearer KEY'")

    _add_errors(app, service.options.model_type)
    _add_system(app, service)
    match service.options.model_type:
        case "causal":
            app.register_blueprint(chat.blueprint(service))
            app.register_blueprint(completions.blueprint(service))
        case "vision":
            app.register_blueprint(chat.blueprint(service))
        case "embedding":
            app.register_blueprint(embeddings.blueprint(service))
        case "classification":
            app.register_blueprint(classify.blueprint(service))
    return app


def _given_key() -> bytes:
    authorization = request.headers.get("Authorization", "")
    scheme, _, token = authorization.partition(" ")
    given = token.strip() if scheme.lower() == "bearer" else request.headers.get("X-API-Key", "")
    return given.encode(errors="surrogateescape")


def _is_known(given: bytes, keys: list[bytes]) -> bool:
    matches = [hmac.compare_digest(given, key) for key in keys]  # all of them, for constant time
    return any(matches)


def _add_errors(app: Flask, model_type: str) -> None:
    @app.errorhandler(ApiError)
    def api_error(error: ApiError) -> Response:
        response = render.answer(error.body(), error.status)
        response.headers.update(error.headers())
        return response

    @app.errorhandler(ParseException)
    def bad_framing(error: ParseException) -> Response:
        return api_error(BadRequest(f"the body can't be read: {error}"))

    @app.errorhandler(HTTPException)
    def http_error(error: HTTPException) -> Response:
        if error.code == 413:
            limit = app.config["MAX_CONTENT_LENGTH"]
            return api_error(BodyTooLarge(f"the body has more than {limit} bytes"))
        if error.code == 404:
            posts = sorted(rule.rule for rule in app.url_map.iter_rules() if "POST" in (rule.methods or ()))
            takes = f"this {model_type} server takes POST {' and '.join(posts)}"
            return api_error(UnknownPath(f"unknown path {request.method} {request.path}: {takes}"))
        if error.code == 405:
            return api_error(WrongMethod(f"{request.path} does not take {request.method}"))
        other = ApiError(error.description or "the request failed")
        other.status = error.code or 500
        return api_error(other)

    @app.errorhandler(Exception)
    def unexpected(error: Exception) -> Response:
        error_id = uuid.uuid4().hex[:12]
        logger.error("event=unexpected_error id=%s path=%s", error_id, request.path, exc_info=error)
        return api_error(ApiError(f"unexpected error {error_id}; the server's log has the reason"))


def _add_system(app: Flask, service: Service) -> None:
    options = service.options

    @app.get("/health")
    def health() -> Response:
        device = service.device
        if device is None:
            return render.answer({"status": "loading", "stage": service.stage}, 503)
        return render.answer(
            {
                "status": "ok",
                "model": options.alias,
                "model_type": options.model_type,
                "device": device,
            }
        )

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(service.metrics.render(), content_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/models")
    def models() -> Response:
        return render.answer(
            {
                "object": "list",
                "data": [
                    {
                        "id": options.alias,
                        "object": "model",
                        "created": service.created,
                        "owned_by": "huggingface",
                        "context_size": service.context_size,
                        "capabilities": options.capabilities,
                    }
                ],
                "models": [
                    {
                        "name": options.alias,
                        "model": options.alias,
                        "type": "model",
                        "description": "",
                        "tags": [],
                        "capabilities": options.capabilities,
                        "details": {"format": "huggingface", "model_type": options.model_type},
                    }
                ],
            }
        )
