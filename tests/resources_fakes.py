"""Made-up devices and jobs for the tests of resources."""

from dataclasses import dataclass
from pathlib import Path

TWO_GPUS = [
    {"index": 0, "name": "Small", "total_gb": 24.0, "used_gb": 8.0},
    {"index": 1, "name": "Big", "total_gb": 24.0, "used_gb": 0.0},
]


@dataclass
class FakeJob:
    running: bool = True
    pids: tuple[int, ...] = ()
    workspace: Path | None = None
