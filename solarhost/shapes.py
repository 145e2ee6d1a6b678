"""Does a value that was read from a file have the type that its field declares?"""

import sys
from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def check_fields(instance: object) -> None:
    """Compare the fields of a dataclass with their annotations.

    Raises:
        ValueError: naming a field whose value is of another kind. The value may be a secret and stays out.
    """
    for name, hint in _hints(type(instance)).items():  # type: ignore[arg-type]  # classes are hashable
        if not fits(getattr(instance, name), hint):
            raise ValueError(f"{name} is not of its kind")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def fits(value: Any, hint: Any) -> bool:
    """True when `value` is what `hint` says; knows what JSON can hold, tuples, mappings and classes."""
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind is Any:
        return True
    if kind in (Union, UnionType):
        return any(fits(value, option) for option in arguments)
    if kind is Literal:
        return value in arguments
    if kind in (int, float) and isinstance(value, bool):
        return False
    if kind is float:
        return isinstance(value, int | float) and abs(value) <= sys.float_info.max
    if not isinstance(value, kind):
        return False
    if kind is tuple:
        return all(fits(item, arguments[0]) for item in value)
    if issubclass(kind, Mapping):
        return all(fits(key, arguments[0]) and fits(item, arguments[1]) for key, item in value.items())
    return True
