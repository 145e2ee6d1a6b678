"""Which faults are at work, and which were a moment ago."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

AGENT = "agent"  # its own processes were killed or stopped and do not answer yet
CLOCK = "clock"
CONTROL = "control"
DESCRIPTORS = "descriptors"
DISK = "disk"
DOCKER = "docker"
REGISTRY = "registry"
THREADS = "threads"

AFTERMATH_S = 3.0  # how long a fault may show after its end


@dataclass
class Spell:
    """One fault, from its begin to its end."""

    name: str
    began: float
    ended: float | None = None


class Weather:
    """The faults of a run. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards _spells
        self._spells: list[Spell] = []

    @contextmanager
    def spell(self, name: str) -> Iterator[None]:
        """The fault is at work within the block."""
        spell = Spell(name, time.monotonic())
        with self._lock:
            self._spells.append(spell)
        try:
            yield
        finally:
            spell.ended = time.monotonic()

    def since(self, moment: float) -> set[str]:
        """Faults that were at work at any time from `moment` (`time.monotonic()`) on."""
        with self._lock:
            return {spell.name for spell in self._spells if spell.ended is None or spell.ended >= moment}

    def between(self, began: float, ended: float) -> set[str]:
        """Faults that were at work between two moments, or a little before."""
        with self._lock:
            return {
                spell.name
                for spell in self._spells
                if spell.began <= ended and (spell.ended is None or spell.ended >= began - AFTERMATH_S)
            }
