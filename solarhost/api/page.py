"""The operator page: files of the package, under headers that let it reach nothing but this agent."""

from pathlib import Path

from flask import Blueprint, Response, redirect, send_from_directory
from werkzeug.wrappers import Response as AnyResponse

FOLDER = Path(__file__).parents[1] / "ui"
HEADERS = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            "worker-src 'self'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types worker",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
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
