"""Answers as JSON, whole or as server-sent events, as OpenAI's clients read them."""

from typing import Any

import orjson
from flask import Response

EVENT_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
LAST_EVENT = b"data: [DONE]\n\n"


def encoded(value: dict[str, Any]) -> bytes:
    """JSON. A number of a float32 array gets as few digits as tell it from all others."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def answer(value: dict[str, Any], status: int = 200) -> Response:
    return Response(encoded(value), status, mimetype="application/json")


def event(value: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % encoded(value)
