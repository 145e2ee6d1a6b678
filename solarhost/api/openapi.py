"""The OpenAPI document and Swagger UI, both served from installed packages."""

import base64
import hashlib
import mimetypes
from pathlib import Path
from typing import Any

from flask import Flask, Response, redirect
from flask_smorest import Api
from swagger_ui_bundle import swagger_ui_path
from werkzeug.exceptions import NotFound

from solarhost import __version__
from solarhost.api.browser import page_headers
from solarhost.api.schemas import Invalid

STATIC = "/docs/static/"
ASSET_MAX_AGE_S = 3600


class Documentation(Api):  # type: ignore[misc]
    """flask-smorest's API, with error answers left to `api.errors`."""

    ERROR_SCHEMA = Invalid  # of every answer that no operation names, such as 401

    _document: bytes | None = None
    _page: tuple[str, dict[str, str]] | None = None

    def _register_error_handlers(self) -> None:
        pass

    def _openapi_json(self) -> Response:
        """The document, made once: routes don't change while the agent runs."""
        if self._document is None:
            self._document = super()._openapi_json().get_data()
        return Response(self._document, mimetype="application/json")

    def _openapi_swagger_ui(self) -> tuple[str, dict[str, str]]:
        """The page and its headers; of the scripts in it only the library's own may run."""
        if self._page is None:
            html: str = super()._openapi_swagger_ui()
            script = html.rpartition("<script>")[2].partition("</script>")[0]
            digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
            policy = {
                "script-src": f"'self' 'sha256-{digest}'",
                "style-src": "'self' 'unsafe-inline'",  # it sets styles on elements
                "img-src": "'self' data:",
            }
            self._page = html, page_headers(policy)
        return self._page


def register(app: Flask) -> Documentation:
    app.config.update(
        API_TITLE="Solar Host",
        API_VERSION=__version__,
        OPENAPI_VERSION="3.0.3",
        OPENAPI_URL_PREFIX="/",
        OPENAPI_JSON_PATH="openapi.json",
        OPENAPI_SWAGGER_UI_PATH="docs",
        OPENAPI_SWAGGER_UI_URL=STATIC,
        OPENAPI_SWAGGER_UI_CONFIG={"persistAuthorization": True, "displayRequestDuration": True},
    )
    api = Documentation(app)
    api.spec.components.security_scheme("key", {"type": "apiKey", "in": "header", "name": "X-API-Key"})
    api.spec.options["security"] = [{"key": []}]

    assets = {path.name: path for path in Path(swagger_ui_path).iterdir() if path.is_file()}

    @app.get(STATIC + "<name>")
    def docs_static(name: str) -> Response:
        if name not in assets:
            raise NotFound
        kind = mimetypes.guess_type(name)[0]
        # In one piece, so that a thousand small writes don't keep other requests waiting.
        response = Response(assets[name].read_bytes(), mimetype=kind)
        response.cache_control.max_age = ASSET_MAX_AGE_S
        return response

    @app.get("/redoc")
    def redoc() -> Any:
        return redirect("/docs")

    return api
