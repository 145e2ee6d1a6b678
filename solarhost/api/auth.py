"""Who may call: one of the accepted keys, compared in constant time."""

import base64
import hmac
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from flask import Flask, Request, Response, jsonify, request

from solarhost.net import is_loopback
from solarhost.settings import DEFAULT_API_KEY

OPEN_PATHS = frozenset({"/", "/health", "/docs", "/redoc", "/openapi.json", "/ui", "/favicon.ico"})
OPEN_PREFIXES = ("/docs/static/", "/ui/")
SUBPROTOCOL = "solar-key."


class KeyRing:
    """The accepted keys. Safe from any thread.

    Everybody knows the default key, any web page too. So it opens nothing for a page of another place
    that runs in a browser on this machine, be it by its own name or by one that it had lead here.
    """

    def __init__(self, keys: Sequence[str]):
        self._keys = [key.encode() for key in keys]

    def refusal(self, given: str, environ: Mapping[str, Any]) -> str | None:
        """Why a request with this key is not let in; None if it is."""
        presented = given.encode("utf-8", "surrogateescape")
        matches = [hmac.compare_digest(presented, key) for key in self._keys]  # all of them, always
        if not any(matches):
            return "Invalid or missing API key"
        if presented == DEFAULT_API_KEY.encode() and not _is_from_here(environ):
            return (
                "The default API_KEY counts for pages and addresses of this machine only: set one of your own"
            )
        return None


def _is_from_here(environ: Mapping[str, Any]) -> bool:
    """Both the page that asks and the address that it asks are this machine's, where they are told."""
    page, asked = environ.get("HTTP_ORIGIN"), environ.get("HTTP_HOST")
    try:
        hosts = [urlsplit(address).hostname for address in (page, asked and f"//{asked}") if address]
    except ValueError:
        return False
    return all(is_loopback(host or "") for host in hosts)


def register(app: Flask, keys: KeyRing) -> None:
    """Refuse every request without a key, but for the open paths."""

    @app.before_request
    def check() -> tuple[Response, int] | None:
        if request.method == "OPTIONS" or is_open(request.path):
            return None
        refusal = keys.refusal(presented_key(request) or "", request.environ)
        return (jsonify({"detail": refusal}), 401) if refusal else None


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
    except ValueError:
        return None
