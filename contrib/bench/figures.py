"""What a measurement yields, and how it is told.

`python -m contrib.bench.NAME` prints each figure as one line as soon as it is known. Where BENCH_FIGURES
names a file, each is appended to it as a line of JSON too: so `contrib.bench.run` gets them, and what was
measured before a failure is kept.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FIGURES = "BENCH_FIGURES"
OF_PEER = "of the peer's"
SCALE = float(os.environ.get("BENCH_SCALE", "1"))  # 0.1 measures a tenth as long, for a try


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured value, and what it has to be."""

    name: str
    value: float
    unit: str  # "ms", "requests/s"; of a ratio, what it is a ratio to: "of the peer's"
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""  # how it came about: counts, absolute values behind a ratio, what else ran
    points: tuple[tuple[float, float], ...] = ()  # of a growth exponent: the sizes, and the values there
    load: float = field(default_factory=lambda: round(os.getloadavg()[0], 1))  # of the machine, by then

    @property
    def is_of_peer(self) -> bool:
        """A ratio to what the peer did in the same run."""
        return self.unit == OF_PEER

    @property
    def limit(self) -> str:
        """In words, as `at most 50`; empty when there is none."""
        bounds = (("at most", self.at_most), ("at least", self.at_least))
        return " and ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None)

    @property
    def is_met(self) -> bool | None:
        """None when there is no limit."""
        if not self.limit:
            return None
        return (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "limit": self.limit, "is_met": self.is_met}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Figure":
        """Raises KeyError or TypeError: it is none."""
        values = {key: value for key, value in data.items() if key not in ("limit", "is_met")}
        return cls(**{**values, "points": tuple((x, y) for x, y in values["points"])})

    def __str__(self) -> str:
        parts = [f"{self.name} {number(self.value)} {self.unit}"]
        if self.limit:
            parts.append(f" ({self.limit}{'' if self.is_met else ': MISSED'})")
        return "".join(parts) + (f": {self.note}" if self.note else "")


def number(value: float) -> str:
    """Three digits that count, or the whole number."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def seconds(whole: float) -> float:
    """How long to measure what deserves `whole` seconds."""
    return max(1.0, whole * SCALE)


def times(whole: int, least: int = 1) -> int:
    """How often to do what deserves to be done `whole` times."""
    return max(least, round(whole * SCALE))


def show(measure: Callable[[], Iterable[Figure]]) -> None:
    """Print the figures as they come; the body of each script. SIGTERM ends it with what it started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    sink = os.environ.get(FIGURES)
    for figure in measure():
        print(figure, flush=True)
        if sink:
            with Path(sink).open("a") as file:
                file.write(json.dumps(figure.as_json()) + "\n")


def collected(path: Path) -> list[Figure]:
    """What a script has left in its file so far; a line that it was killed at is not counted."""
    whole, _, _ = path.read_text().rpartition("\n")
    return [Figure.from_json(json.loads(line)) for line in whole.splitlines()]
