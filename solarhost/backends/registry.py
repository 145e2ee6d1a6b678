"""All backends, and which one a config belongs to."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from marshmallow import INCLUDE, ValidationError

from solarhost.backends.base import Backend
from solarhost.errors import InvalidRequest


class Backends:
    """Finds the backend of a config. Never changes after it was built."""

    def __init__(self, backends: Iterable[Backend]):
        self._by_type = {backend.backend_type: backend for backend in backends}

    @property
    def types(self) -> list[str]:
        return list(self._by_type)

    def all(self) -> list[Backend]:
        return list(self._by_type.values())

    def of(self, config: Mapping[str, Any]) -> Backend:
        """The backend of a checked config."""
        return self._by_type[config["backend_type"]]

    def check(self, given: object) -> tuple[dict[str, Any], list[str]]:
        """The config with its defaults, and warnings about keys that nobody knows.

        Raises:
            InvalidRequest: it is not an object, names no backend, or breaks a rule of its backend.
        """
        if not isinstance(given, dict):
            raise InvalidRequest("config must be a JSON object", {"config": ["Not a JSON object."]})
        backend_type = given.get("backend_type") or _infer(given)
        backend = self._by_type.get(backend_type) if isinstance(backend_type, str) else None
        if backend is None:
            raise InvalidRequest(
                f"backend_type {backend_type!r} is not one of {', '.join(self._by_type)}",
                {"backend_type": [f"Must be one of: {', '.join(self._by_type)}."]},
            )
        schema = backend.schema(unknown=INCLUDE)
        try:
            config = schema.load({**given, "backend_type": backend_type})
        except ValidationError as error:
            raise _invalid(error) from error
        known = set(schema.fields) | {"backend_type"}
        warnings = [_unknown(key, known) for key in given if key not in known]
        return dict(config), warnings


def _infer(config: Mapping[str, Any]) -> str:
    """Configs of earlier versions carry no type."""
    if "model" in config or "model_id" not in config:
        return "llamacpp"
    return "huggingface_classification" if config.get("labels") else "huggingface_causal"


def _unknown(key: str, known: set[str]) -> str:
    near = get_close_matches(key, known, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"unknown field '{key}' ignored{hint}"


def _invalid(error: ValidationError) -> InvalidRequest:
    by_field: Mapping[str, Any] = error.normalized_messages()  # type: ignore[no-untyped-call]
    errors = {name: _flatten(messages) for name, messages in by_field.items()}
    name, messages = next(iter(errors.items()))
    subject = "config" if name == "_schema" else f"config.{name}"
    return InvalidRequest(f"{subject}: {messages[0]}", errors)


def _flatten(messages: Any) -> list[str]:
    if isinstance(messages, Mapping):
        return [f"{key}: {text}" for key, inner in messages.items() for text in _flatten(inner)]
    if isinstance(messages, list):
        return [str(message) for message in messages]
    return [str(messages)]
