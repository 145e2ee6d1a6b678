"""Fields of instance configs: they take the JSON type that they name, and nothing that looks like it."""

import unicodedata
from collections.abc import Callable
from typing import Any

from marshmallow import ValidationError, fields, validate

INT_MAX = 2**31 - 1  # model servers parse numbers into C ints


class Text(fields.String):
    """One line of text that can be printed, encoded and put on a command line."""

    def __init__(self, max_length: int, **kwargs: Any):
        super().__init__(validate=validate.Length(1, max_length), **kwargs)

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> str:
        text = super()._deserialize(value, *args, **kwargs)
        if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text):
            raise ValidationError("Control characters are not allowed.")
        return text


class Argument(fields.String):
    """Text that may hold line breaks, as one argument of a command."""

    def __init__(self, max_length: int, *, check: Callable[[str], None], **kwargs: Any):
        super().__init__(validate=[validate.Length(0, max_length), check], **kwargs)

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> str:
        text = super()._deserialize(value, *args, **kwargs)
        if "\0" in text or any(unicodedata.category(letter) == "Cs" for letter in text):
            raise ValidationError("NUL and lone surrogates are not allowed.")
        return text


class Whole(fields.Integer):
    """A whole number; `4.0` is one in JSON, `"4"` and `true` are not."""

    def __init__(self, low: int, high: int = INT_MAX, **kwargs: Any):
        super().__init__(validate=validate.Range(low, high), **kwargs)

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> int:
        if isinstance(value, str) or (isinstance(value, float) and not value.is_integer()):
            raise self.make_error("invalid", input=value)
        return super()._deserialize(value, *args, **kwargs)


class Number(fields.Float):
    """A finite number, not text."""

    def __init__(self, low: float, high: float | None = None, *, above: bool = False, **kwargs: Any):
        super().__init__(validate=validate.Range(low, high, min_inclusive=not above), **kwargs)

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> float:
        if isinstance(value, str):
            raise self.make_error("invalid", input=value)
        return super()._deserialize(value, *args, **kwargs)


class Flag(fields.Boolean):
    """`true` or `false`, not 1 or `"yes"`."""

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> bool:
        if not isinstance(value, bool):
            raise self.make_error("invalid", input=value)
        return super()._deserialize(value, *args, **kwargs)
