"""What does not stop the agent's start and is hardly meant."""

from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path

from dotenv.parser import parse_stream

from solarhost.backends.base import CannotStart
from solarhost.backends.llamacpp import LlamaCpp
from solarhost.settings import Settings


def doubts(settings: Settings, env_file: Path = Path(".env")) -> list[str]:
    """A sentence about each name that is no setting, and about a program that is not there."""
    return [*unknown_names(env_file), *_missing_program(settings)]


def unknown_names(env_file: Path = Path(".env")) -> list[str]:
    """A sentence about each name in a readable `env_file` that is no setting."""
    if not env_file.is_file():
        return []
    known = [setting.name.upper() for setting in fields(Settings)]
    with env_file.open(encoding="utf-8") as file:
        names = dict.fromkeys(binding.key for binding in parse_stream(file) if binding.key)
    sentences = []
    for name in (name for name in names if name not in known):
        near = get_close_matches(name.upper(), known, n=1, cutoff=0.7)
        hint = f"did you mean {near[0]}?" if near else "it is only passed on to the model servers"
        sentences.append(f"{name} in {env_file} is not a setting; {hint}")
    return sentences


def _missing_program(settings: Settings) -> list[str]:
    """Servers that run, other models and jobs need the agent all the same."""
    if not settings.llama_server_path:
        return []
    try:
        LlamaCpp(settings.llama_server_path).find_executable()
    except CannotStart as error:
        return [f"llama.cpp instances can't start: {error}"]
    return []
