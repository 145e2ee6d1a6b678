"""JSON from outside, kept to what can be copied, stored, and read again by everyone."""

import json
import math
from typing import Any, NoReturn

MAX_DEPTH = 100  # lists and objects inside one another; they are copied and written recursively


def parse(data: bytes) -> Any:
    """The value of UTF-8 text that is JSON by the standard.

    Raises:
        ValueError: it is not: bad UTF-8, `NaN`, a number beyond all bounds, absurd nesting, …
    """
    try:
        value = json.loads(data.decode(), parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    check_depth(value, MAX_DEPTH)
    return value


def check_depth(value: object, limit: int) -> None:
    """Raises ValueError: lists and objects are nested more than `limit` deep in `value`."""
    if not isinstance(value, dict | list):
        return
    if limit == 0:
        raise ValueError("it is nested too deep")
    for item in value.values() if isinstance(value, dict) else value:
        check_depth(item, limit - 1)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:20]} is too large a number")
    return number
