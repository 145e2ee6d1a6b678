"""Request bodies: strict JSON, or 400 with the reason."""

from typing import Any

from flask import Request
from flask_smorest import Blueprint as SmorestBlueprint
from webargs.core import missing
from webargs.flaskparser import FlaskParser, is_json_request
from werkzeug.exceptions import BadRequest

from solarhost import strictjson


class _Parser(FlaskParser):
    def _raw_load_json(self, req: Request) -> Any:
        if not is_json_request(req):
            return missing
        try:
            return strictjson.parse(req.get_data(cache=True))
        except ValueError as error:
            raise BadRequest(f"the body is not valid JSON: {error}") from error


class Blueprint(SmorestBlueprint):  # type: ignore[misc]
    """flask-smorest's, whose arguments are read strictly."""

    ARGUMENTS_PARSER = _Parser()
