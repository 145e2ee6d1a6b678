"""What the ledger has to know about a job."""

from collections.abc import Collection
from pathlib import Path
from typing import Protocol


class JobView(Protocol):
    """A job at one moment; `pids` are the first processes of its live containers."""

    @property
    def running(self) -> bool: ...

    @property
    def pids(self) -> Collection[int]: ...

    @property
    def workspace(self) -> Path | None: ...
