"""Answers that lie ready, given without Flask.

Control polls `GET /instances` and `GET /resources` of every host. Their bodies are made when something
changes, so most of the time of such a request would go into finding out that there is nothing to do.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from solarhost.api.auth import KeyRing

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class ReadyAnswers:
    """WSGI in front of an application: the plain request with the right key is answered here.

    All else, refusals included, is the application's, whose answer to the plain request is the same.
    """

    def __init__(self, app: "WSGIApplication", keys: KeyRing, bodies: Mapping[str, Callable[[], bytes]]):
        self._app = app
        self._keys = keys
        self._bodies = bodies  # JSON, by path; called for each request, so it must not compute

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        body = self._bodies.get(environ["PATH_INFO"])
        if (
            body is None
            or environ["REQUEST_METHOD"] != "GET"
            or self._keys.refusal(environ.get("HTTP_X_API_KEY", ""), environ)
        ):
            return self._app(environ, start_response)
        headers, ready = _answer(body)
        start_response("200 OK", headers)
        if (sock := environ.get("gunicorn.socket")) is not None:
            sock.ready = partial(_answer, body)  # the server may answer the same request so, without us
        return [ready]


def _answer(body: Callable[[], bytes]) -> tuple[list[tuple[str, str]], bytes]:
    ready = body()
    headers = [
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(ready))),
        ("Access-Control-Allow-Origin", "*"),
    ]
    return headers, ready
