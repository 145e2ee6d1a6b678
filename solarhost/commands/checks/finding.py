"""What a check found."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    GREEN = "green"  # works, or is not wanted
    YELLOW = "yellow"  # something that one may want does not work
    RED = "red"  # the agent, or what is configured, will not work


@dataclass(frozen=True, slots=True)
class Finding:
    subject: str
    level: Level
    text: str
    next_step: str = ""


def green(subject: str, text: str) -> Finding:
    return Finding(subject, Level.GREEN, text)


def yellow(subject: str, text: str, next_step: str) -> Finding:
    return Finding(subject, Level.YELLOW, text, next_step)


def red(subject: str, text: str, next_step: str) -> Finding:
    return Finding(subject, Level.RED, text, next_step)


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended; `code` is None when it did not in its time."""

    code: int | None
    output: str

    @property
    def last_line(self) -> str:
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return lines[-1] if lines else ""


def run(command: Sequence[str], limit_s: float, environment: Mapping[str, str] | None = None) -> Ran:
    """Run a program to its end, or kill it at its limit. Raises OSError: it can't be run."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit_s,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Ran(None, "")
    return Ran(done.returncode, done.stdout.decode(errors="replace"))
