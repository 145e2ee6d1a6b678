"""Log lines of `key=value` pairs, as hf_server writes them."""

import json
import re

_PAIR = re.compile(r'(?<!\S)([a-z_]+)=("(?:[^"\\]|\\.)*"|\S*)')


def key_values(line: str) -> dict[str, str]:
    """The pairs of a line; a quoted value is a JSON string. Any line is fine, most give {}."""
    return {name: _plain(value) for name, value in _PAIR.findall(line)}


def _plain(value: str) -> str:
    if not value.startswith('"'):
        return value
    try:
        return str(json.loads(value))
    except ValueError:
        return value
