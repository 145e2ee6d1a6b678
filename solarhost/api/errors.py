"""Errors as HTTP answers: always JSON, always with a `detail`."""

import errno
import logging
import uuid
from typing import Any

from flask import Flask, Response, jsonify
from werkzeug.exceptions import HTTPException

from solarhost.errors import Conflict, InvalidRequest, NotFound, SolarHostError, StoreError, Unavailable
from solarhost.shortages import is_shortage, refused

logger = logging.getLogger(__name__)

STATUS: list[tuple[type[SolarHostError], int]] = [
    (InvalidRequest, 422),
    (NotFound, 404),
    (Conflict, 409),
    (Unavailable, 503),
    (StoreError, 500),
]


def register(app: Flask) -> None:
    app.register_error_handler(SolarHostError, answer)
    app.register_error_handler(HTTPException, _http)
    app.register_error_handler(Exception, _unexpected)


def answer(error: SolarHostError) -> tuple[Response, int]:
    """The answer for an error of this program; a class may bring a status and a body of its own."""
    response = jsonify(body_of(error))
    retry_after_s: int | None = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        response.headers["Retry-After"] = str(retry_after_s)
    return response, status_of(error)


def status_of(error: SolarHostError) -> int:
    status: int | None = getattr(error, "status", None)
    if status is not None:
        return status
    cause = error.__cause__
    if isinstance(error, StoreError) and isinstance(cause, OSError):
        return 507 if cause.errno in (errno.ENOSPC, errno.EDQUOT) else 503 if is_shortage(cause) else 500
    return next((code for kind, code in STATUS if isinstance(error, kind)), 500)


def body_of(error: SolarHostError) -> dict[str, Any]:
    body = getattr(error, "body", None)
    if body is not None:
        result: dict[str, Any] = body()
        return result
    if isinstance(error, InvalidRequest) and error.errors:
        return {"detail": str(error), "errors": error.errors}
    return {"detail": str(error)}


def _http(error: HTTPException) -> tuple[Response, int]:
    """What Flask and the argument parser raise by themselves."""
    code = error.code or 500
    messages = getattr(error, "data", {}).get("messages")
    if messages and code == 422:
        # By location (json, query), then by field.
        errors = {
            field: _texts(texts)
            for fields in messages.values()
            for field, texts in (fields.items() if isinstance(fields, dict) else [("body", fields)])
        }
        field, texts = next(iter(errors.items()))
        subject = "" if field in ("_schema", "body") else f"{field}: "
        response = jsonify({"detail": f"{subject}{texts[0]}", "errors": errors})
    else:
        response = jsonify({"detail": error.description or error.name})
    if code == 405 and getattr(error, "valid_methods", None):
        response.headers["Allow"] = ", ".join(error.valid_methods)  # type: ignore[attr-defined]
    return response, code


def _texts(messages: Any) -> list[str]:
    if isinstance(messages, dict):
        return [f"{key}: {text}" for key, inner in messages.items() for text in _texts(inner)]
    if isinstance(messages, list):
        return [text for inner in messages for text in _texts(inner)]
    return [str(messages)]


def _unexpected(error: Exception) -> tuple[Response, int]:
    if words := refused(error):
        logger.warning("a call failed", exc_info=error)
        return answer(Unavailable(words))
    incident = uuid.uuid4().hex[:12]
    logger.error("unexpected error %s", incident, exc_info=error)
    return jsonify({"detail": f"unexpected error {incident}; the agent's log has it", "id": incident}), 500
