"""The operator page: files of the package, under headers that let it reach nothing but this agent."""

from pathlib import Path

from flask import Blueprint, Response, redirect, send_from_directory
from werkzeug.wrappers import Response as AnyResponse

from solarhost.api.browser import page_headers

FOLDER = Path(__file__).parents[1] / "ui"
HEADERS = {
    **page_headers(
        {
            "script-src": "'self'",
            "style-src": "'self'",
            "worker-src": "'self'",
            "require-trusted-types-for": "'script'",
            "trusted-types": "worker",
        }
    ),
    # Asked for again each time, and answered with 304: an upgraded agent never meets an old half of its page.
    "Cache-Control": "no-cache",
}


def blueprint() -> Blueprint:
    """`/ui/` and its files; they hold nothing secret, so they need no key."""
    page = Blueprint("page", __name__)

    @page.get("/ui")
    def without_slash() -> AnyResponse:
        return redirect("ui/")

    @page.get("/ui/", defaults={"name": "index.html"})
    @page.get("/ui/<name>")
    def file(name: str) -> Response:
        return send_from_directory(FOLDER, name)

    @page.after_request
    def protect(response: Response) -> Response:
        response.headers.update(HEADERS)
        return response

    return page
