"""Reading a JSON body field by field; what is wrong becomes a 400 that names the field."""

import json
import math
from typing import Any

from hf_server.errors import BadRequest


class Body:
    """The JSON object of one request. A null field counts as absent, as OpenAI's clients expect."""

    def __init__(self, fields: dict[str, Any]):
        self._fields = fields

    @classmethod
    def parse(cls, data: bytes) -> "Body":
        """Raises BadRequest for what is not a JSON object."""
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise BadRequest(f"the body is not valid JSON: {reason}") from error
        if not isinstance(value, dict):
            raise BadRequest("the body must be a JSON object")
        return cls(value)

    def get(self, name: str) -> Any:
        return self._fields.get(name)

    def required(self, name: str) -> Any:
        value = self._fields.get(name)
        if value is None:
            raise BadRequest(f"'{name}' is required", name)
        return value

    def flag(self, name: str) -> bool:
        value = self._fields.get(name)
        if value is not None and not isinstance(value, bool):
            raise BadRequest(f"'{name}' must be true or false", name)
        return bool(value)

    def integer(self, name: str, low: int, high: int) -> int | None:
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise BadRequest(f"'{name}' must be a whole number from {low} to {high}", name)
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self._fields.get(name)
        if value is None:
            return default
        if not is_number(value) or not low <= value <= high:
            raise BadRequest(f"'{name}' must be a number from {low:g} to {high:g}", name)
        return float(value)

    def model(self) -> None:
        """`model` is any string: this server has one model, and its gateway knows it by other names."""
        value = self._fields.get("model")
        if value is not None and not isinstance(value, str):
            raise BadRequest("'model' must be a string", "model")

    def refuse(self, name: str, *harmless: object) -> None:
        """A field that can't be honoured: anything but absent or a harmless value is an error."""
        value = self._fields.get(name)
        if value is not None and value not in harmless:
            raise BadRequest(f"'{name}' is not supported by this server", name)


def is_number(value: object) -> bool:
    """True for a finite JSON number; a whole one may be too large for a float."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def text(value: object, param: str) -> str:
    """`value` if it is a string that can be encoded; a lone surrogate can't."""
    if not isinstance(value, str):
        raise BadRequest(f"'{param}' must be a string", param)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"'{param}' is not valid Unicode: a lone surrogate at character {error.start}", param
        ) from error
    return value


def token_ids(value: list[Any], vocabulary: int, param: str) -> list[int]:
    """`value` if it is a list of token ids below `vocabulary`."""
    for token in value:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocabulary:
            raise BadRequest(f"'{param}' holds {token!r:.40}, not a token id below {vocabulary}", param)
    return value


def is_token_list(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], int)
