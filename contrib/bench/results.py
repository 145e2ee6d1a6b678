"""What the benches yielded: kept as JSON, one outcome a bench, each with what came before it."""

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from contrib.bench.figures import SCALE, Figure
from contrib.setup.steps import ROOT

KEPT = ROOT / "docs" / "bench" / "figures.json"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One bench: what it yielded, and why it yielded no more."""

    bench: str
    figures: tuple[Figure, ...] = ()
    failure: str | None = None
    took_s: float = 0.0
    at: str = ""  # when it ended
    commit: str = ""
    machine: str = ""
    peer: bool = False  # it could be set against the peer
    scale: float = SCALE
    before: Mapping[str, float] = field(default_factory=dict)  # the kept value of each figure, by name

    def as_json(self) -> dict[str, Any]:
        figures = [figure.as_json() for figure in self.figures]
        return {**vars(self), "figures": figures, "before": dict(self.before)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Outcome":
        """Raises KeyError or TypeError: it is none."""
        return cls(**{**data, "figures": tuple(Figure.from_json(figure) for figure in data["figures"])})

    def compared(self, kept: "Outcome | None") -> "Outcome":
        """With the values of an earlier one; those of another kind of machine tell nothing."""
        if kept is None or kept.machine != self.machine:
            return self
        return replace(self, before={figure.name: figure.value for figure in kept.figures})

    def change(self, figure: Figure) -> float | None:
        """By what part of its earlier value a figure grew: 0.1 is a tenth more."""
        before = self.before.get(figure.name)
        return figure.value / before - 1 if before else None


def save(outcomes: Iterable[Outcome], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {"outcomes": [outcome.as_json() for outcome in outcomes]}
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def load(path: Path = KEPT) -> list[Outcome]:
    """Nothing when there is no such file."""
    return parse(path.read_text()) if path.exists() else []


def parse(text: str) -> list[Outcome]:
    return [Outcome.from_json(outcome) for outcome in json.loads(text)["outcomes"]]


def merged(kept: Iterable[Outcome], new: Iterable[Outcome], order: Iterable[str]) -> list[Outcome]:
    """The new ones in place of the kept ones of their names, in order; a name that went is dropped."""
    by_name = {outcome.bench: outcome for outcome in (*kept, *new)}
    return [by_name[name] for name in order if name in by_name]


def committed() -> list[Outcome]:
    """What the repository's newest commit holds."""
    try:
        return parse(_git("show", f"HEAD:{KEPT.relative_to(ROOT)}"))
    except (OSError, subprocess.CalledProcessError):  # no commit has it, or this is no repository
        return []


def commit() -> str:
    """Of the code that is measured; with a plus when it was changed since."""
    try:
        changed = _git("status", "--porcelain", "--", ":!docs")
        return _git("rev-parse", "--short", "HEAD").strip() + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine() -> str:
    """Processor, cores, memory, Python: what timings depend on."""
    info = Path("/proc/cpuinfo").read_text()
    model = next((line.split(":", 1)[1] for line in info.splitlines() if "model name" in line), "")
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{model.strip() or platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB, "
        f"Python {platform.python_version()}"
    )


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout
