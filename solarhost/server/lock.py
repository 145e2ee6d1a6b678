"""The kernel lock that keeps a second agent away from the same files."""

import fcntl
import os
import time
from pathlib import Path

from solarhost.errors import SolarHostError

# A killed agent's worker needs a moment to see that its master is gone.
WAIT_S = 3.0


class AlreadyRunning(SolarHostError):
    """Another agent uses this configuration file."""


class AgentLock:
    """Held from `acquire` until the last process of this agent has ended, however it ended.

    The master takes it and the worker inherits it by fork, so it outlives the death of either. Model
    servers don't get it: the descriptor is closed when another program is executed.
    """

    def __init__(self, config_file: Path):
        self._config_file = config_file
        file = config_file.resolve()  # whatever link leads to it, it is the same file
        self._path = file.with_name(f"{file.name}.lock")
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, waiting a little for a predecessor that is just ending.

        Raises:
            AlreadyRunning: another agent holds it; names its process.
            OSError: the lock file can't be created.
        """
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
                    os.close(descriptor)
                    raise AlreadyRunning(
                        f"another agent (process {holder}) uses {self._config_file}; "
                        "stop it, or set CONFIG_FILE to a file of its own"
                    ) from None
                time.sleep(0.1)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        self._descriptor = descriptor  # stays open: closing it would give the lock up
