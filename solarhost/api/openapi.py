"""The OpenAPI document and Swagger UI, both served from installed packages."""

from pathlib import Path
from typing import Any

from flask import Flask, Response, redirect, send_from_directory
from flask_smorest import Api
from swagger_ui_bundle import swagger_ui_path

from solarhost import __version__
from solarhost.api.schemas import Invalid

STATIC = "/docs/static/"


class Documentation(Api):  # type: ignore[misc]
    """flask-smorest's API, with error answers left to `api.errors`."""

    ERROR_SCHEMA = Invalid  # of every answer that no operation names, such as 401

    def _register_error_handlers(self) -> None:
        pass


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

    @app.get(STATIC + "<path:name>")
    def docs_static(name: str) -> Response:
        return send_from_directory(Path(swagger_ui_path), name)

    @app.get("/redoc")
    def redoc() -> Any:
        return redirect("/docs")

    return api
