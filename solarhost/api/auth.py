"""Who may call: one of the accepted keys, compared in constant time."""

import base64
import binascii
import hmac
from collections.abc import Sequence

from flask import Flask, Request, Response, jsonify, request

OPEN_PATHS = frozenset({"/", "/health", "/docs", "/redoc", "/openapi.json", "/ui", "/favicon.ico"})
OPEN_PREFIXES = ("/docs/static/", "/ui/")
SUBPROTOCOL = "solar-key."


class KeyRing:
    """The accepted keys. Safe from any thread."""

    def __init__(self, keys: Sequence[str]):
        self._keys = [key.encode() for key in keys]

    def accepts(self, given: str) -> bool:
        presented = given.encode("utf-8", "surrogateescape")
        matches = [hmac.compare_digest(presented, key) for key in self._keys]  # all of them, always
        return any(matches)


def register(app: Flask, keys: KeyRing) -> None:
    """Refuse every request without a key, but for the open paths."""

    @app.before_request
    def check() -> tuple[Response, int] | None:
        if request.method == "OPTIONS" or is_open(request.path):
            return None
        given = presented_key(request)
        if given is not None and keys.accepts(given):
            return None
        return jsonify({"detail": "Invalid or missing API key"}), 401


def is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_PREFIXES)


def presented_key(incoming: Request) -> str | None:
    """The key that a request brings; a WebSocket may also bring it in its query or as a subprotocol."""
    key = incoming.headers.get("X-API-Key")
    if key is not None:
        return key
    scheme, _, token = incoming.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    if incoming.headers.get("Upgrade", "").lower() != "websocket":
        return None
    if "api_key" in incoming.args:
        return incoming.args["api_key"]
    subprotocol = key_subprotocol(incoming)
    return _decode(subprotocol.removeprefix(SUBPROTOCOL)) if subprotocol else None


def key_subprotocol(incoming: Request) -> str | None:
    """The offered subprotocol that carries a key; browsers can't send headers, and want it echoed."""
    offered = (name.strip() for name in incoming.headers.get("Sec-WebSocket-Protocol", "").split(","))
    return next((name for name in offered if name.startswith(SUBPROTOCOL)), None)


def _decode(text: str) -> str | None:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (binascii.Error, ValueError):
        return None
