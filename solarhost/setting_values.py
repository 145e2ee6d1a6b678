"""How the text of a variable becomes the value of a setting, or is refused before anything starts.

Each reader takes the environment, the variable's name and the default, and raises ValueError (or one of
environs' own errors, or SettingsError with a sentence of its own) for text that makes no sense.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from environs import Env
from marshmallow import validate

from solarhost.net import control_address, is_host, parse_address

Read = Callable[[Env, str, Any], Any]

SECONDS_MAX = 1e9  # thirty years; the system's own timers end at some hundred
WHOLE_MAX = 2**31 - 1
GPU_SHAPE = "each entry must be {index, name, total_gb, used_gb}, 0 <= used_gb <= total_gb, each index once"
_KEY = re.compile(r"[!-~](?:[ -~]*[!-~])?")


def text(env: Env, name: str, default: Any) -> Any:
    return env.str(name, default)


def flag(env: Env, name: str, default: Any) -> Any:
    return env.bool(name, default)


def _between(low: float, high: float) -> validate.Range:
    return validate.Range(low, high, error="it must be from {min} to {max}")


def whole(low: int, high: int = WHOLE_MAX) -> Read:
    def read(env: Env, name: str, default: Any) -> Any:
        return env.int(name, default, validate=_between(low, high))

    return read


def number(low: float, high: float = SECONDS_MAX) -> Read:
    def read(env: Env, name: str, default: Any) -> Any:
        return env.float(name, default, validate=_between(low, high))

    return read


def choice(*allowed: str) -> Read:
    def read(env: Env, name: str, default: Any) -> Any:
        return env.str(name, default, validate=validate.OneOf(allowed, error="it must be one of {choices}"))

    return read


def file(env: Env, name: str, default: Any) -> Any:
    """A path where a file is, or is going to be."""
    path = env.path(name, default)
    if path.is_dir():
        raise ValueError("it is a folder, and a file is meant")
    return path


def folder(env: Env, name: str, default: Any) -> Any:
    """A path where a folder is, or is going to be."""
    path = env.path(name, default)
    if path.exists() and not path.is_dir():
        raise ValueError("it is a file, and a folder is meant")
    return path


def authorities(env: Env, name: str, default: Any) -> Any:
    """A file of certificates; not parsed, which would take each command longer than all else it reads."""
    value = env.str(name, default)
    if b"-----BEGIN " not in Path(value).read_bytes():
        raise ValueError("it holds no certificate in PEM form")
    return value


def engine(env: Env, name: str, default: Any) -> Any:
    """The socket of an engine on this machine, whose files its containers mount; it may be away."""
    value = env.str(name, default)
    if not value.startswith("unix:///"):
        raise ValueError("it must be unix:// and the path of a socket, such as unix:///var/run/docker.sock")
    return value


def key(env: Env, name: str, default: Any) -> Any:
    """A key that fits into a header whatever the client's encoding."""
    value = env.str(name, default)
    if not is_key(value):
        raise ValueError("a key is of printable ASCII characters, without blanks around it")
    return value


def is_key(value: str) -> bool:
    return _KEY.fullmatch(value) is not None


def host(env: Env, name: str, default: Any) -> Any:
    """An address of this machine, or its name."""
    value = env.str(name, default)
    if not is_host(value):
        raise ValueError("it is neither an IP address nor a host name")
    return value


def address(otherwise: str = "") -> Read:
    """An http or https address; `otherwise` is the scheme of one that has none, if that is allowed."""

    def read(env: Env, name: str, default: Any) -> Any:
        value = env.str(name, default)
        parse_address(name, value, ("http", "https"), otherwise=otherwise)
        return value

    return read


def control(env: Env, name: str, default: Any) -> Any:
    """See `net.control_address`."""
    value = env.str(name, default)
    control_address(value)
    return value


def gpus(env: Env, name: str, default: Any) -> Any:
    """A JSON array of made-up devices."""
    entries = json.loads(env.str(name, default))
    if not isinstance(entries, list):
        raise ValueError("not a JSON array")
    wrong = [entry for entry in entries if not _is_gpu(entry)]
    if wrong:
        raise ValueError(f"{wrong[0]!r} is no device: {GPU_SHAPE}")
    if len({entry["index"] for entry in entries}) < len(entries):
        raise ValueError(f"an index is named twice: {GPU_SHAPE}")
    return entries


def _is_gpu(entry: Any) -> bool:
    match entry:
        case {"index": int(index), "name": str(), "total_gb": int() | float() as total, "used_gb": used}:
            return (
                index >= 0
                and not isinstance(index, bool)
                and isinstance(used, int | float)
                and 0 <= used <= total < 1e6
            )
    return False
