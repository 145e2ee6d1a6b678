"""The body of a new instance, from a file and from flags with the config's own names."""

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import IO, Any

import click
import yaml
from click.shell_completion import CompletionItem
from marshmallow import fields

from solarhost.backends.huggingface_config import (
    CausalConfig,
    ClassificationConfig,
    EmbeddingConfig,
    VisionConfig,
)
from solarhost.backends.llamacpp_config import LlamaCppConfig
from solarhost.commands.failures import BadInput

CONFIG_FLAGS = {"ignore_unknown_options": True, "allow_interspersed_args": True}
BESIDE_CONFIG = ("priority", "managed_by", "intent_id", "gpu_ids", "vram_gb")


class ConfigCommand(click.Command):
    """One that takes the fields of a config as flags."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Its own options, then the flags of the fields."""
        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            flags = map(_flag, [*FIELDS, *BESIDE_CONFIG])
            found += [CompletionItem(flag) for flag in flags if flag.startswith(incomplete)]
        return found


def request_body(
    source: IO[str] | None, flags: Sequence[str], *, allow_unknown: bool = False
) -> dict[str, Any]:
    """The body of `POST /instances`; its config may be empty.

    Raises:
        BadInput: a file or a flag can't be read, or a flag is no field and `allow_unknown` is not set; of the
            fields in a file the agent judges.
    """
    body = read_document(source) if source is not None else {}
    config = body.pop("config", None)
    if config is None:  # a file may be the config itself
        config = {key: value for key, value in body.items() if key not in BESIDE_CONFIG}
        body = {key: value for key, value in body.items() if key in BESIDE_CONFIG}
    if not isinstance(config, dict):
        raise BadInput("config is not an object")
    for name, values in _grouped(flags).items():
        if not allow_unknown and name not in FIELDS and name not in BESIDE_CONFIG:
            raise _unknown(name)
        (body if name in BESIDE_CONFIG else config)[name] = _value(name, values)
    return _as_json({**body, "config": config})


def _unknown(name: str) -> BadInput:
    near = get_close_matches(name, [*FIELDS, *BESIDE_CONFIG], n=1)
    meant = f"did you mean {_flag(near[0])}? " if near else ""
    return BadInput(f"{_flag(name)} is no field of a config", f"{meant}--allow-unknown sends it all the same")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def read_document(source: IO[str]) -> dict[str, Any]:
    """One object from a JSON or YAML file (JSON is YAML). Raises BadInput."""
    try:
        document = yaml.safe_load(source)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"{source.name} is neither JSON nor YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise BadInput(f"{source.name} does not hold an object")
    return _as_json(document)


def _as_json(document: dict[str, Any]) -> dict[str, Any]:
    """YAML knows dates, sets and cycles, which no body can hold. Raises BadInput."""
    try:
        json.dumps(document, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BadInput(f"this can't be written as JSON: {error}", "put quotes around dates") from error
    return document


def _grouped(flags: Sequence[str]) -> dict[str, list[str]]:
    """`--ctx-size 4096 --special` as `{"ctx_size": ["4096"], "special": ["true"]}`."""
    grouped: dict[str, list[str]] = {}
    for name, value in _pairs(flags):
        grouped.setdefault(name, []).append(value)
    return grouped


def _pairs(flags: Sequence[str]) -> Iterator[tuple[str, str]]:
    rest = list(flags)
    while rest:
        flag = rest.pop(0)
        name, equals, value = flag.removeprefix("--").partition("=")
        if not flag.startswith("--") or not name:
            raise BadInput(f"{flag!r} is neither a flag nor the value of one", "write --FIELD VALUE")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        yield name.replace("-", "_"), value


def _value(name: str, texts: Sequence[str]) -> object:
    """Text stays text where the config wants it (`--alias 7`); everything else is read as YAML."""
    if texts == [""]:
        return None  # not given
    field = FIELDS.get(name)
    if isinstance(field, fields.List) or name == "gpu_ids":
        items: list[object] = []
        for text in texts:
            value = _parsed(text)
            items += value if isinstance(value, list) else [_item(name, text)]
        return items
    if len(texts) > 1:
        raise BadInput(f"{_flag(name)} is given {len(texts)} times, but it is not a list")
    return texts[0] if isinstance(field, fields.String) else _parsed(texts[0])


def _item(name: str, text: str) -> object:
    return _parsed(text) if name == "gpu_ids" else text


def _parsed(text: str) -> object:
    """As JSON, since YAML takes 1e-5 for text; else as YAML."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


# What this version knows of; a field of a newer agent needs --allow-unknown and is read as YAML.
FIELDS: Mapping[str, Any] = {
    name: field
    for schema in (LlamaCppConfig, CausalConfig, ClassificationConfig, EmbeddingConfig, VisionConfig)
    for name, field in schema().fields.items()
}
