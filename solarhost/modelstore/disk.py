"""Disk that running pulls were promised, so that two of them don't count on the same bytes."""

import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from solarhost.modelstore.failures import PullError
from solarhost.modelstore.progress import Progress

GIB = 1 << 30


class DiskPromises:
    """Promises on the file system of the models folder. Safe from any thread."""

    def __init__(self, folder: Path, min_free_gb: float, reclaim: Callable[[], None]):
        self._folder = folder
        self._min_free_gb = min_free_gb
        self._reclaim = reclaim  # frees what can be had without asking anyone
        self._lock = Lock()  # guards _promised; held while free disk is read
        self._promised: dict[Progress, int] = {}  # bytes, as they were when it was given

    def give(self, pull: Progress, needed: int) -> None:
        """Set disk aside for what a pull still has to write.

        Raises:
            PullError: there is not enough beyond what must stay free and what others were promised.
        """
        if not self._give(pull, needed):
            self._reclaim()
            if not self._give(pull, needed):
                raise PullError(
                    "insufficient_storage",
                    f"{needed / GIB:.2f} GiB are needed and {self._free() / GIB:.2f} GiB are free, of which "
                    f"{self._min_free_gb:g} GiB must stay free (MIN_FREE_DISK_GB) "
                    f"and {self._outstanding() / GIB:.2f} GiB are promised to other pulls",
                )

    def check(self, pull: Progress) -> None:
        """Watch the disk while a pull writes.

        Raises:
            PullError: less is left than must stay free.
        """
        if pull in self._promised and self._free() < self._min_free_gb * GIB:
            raise PullError(
                "insufficient_storage",
                f"{self._free() / GIB:.2f} GiB are left on the disk, "
                f"{self._min_free_gb:g} GiB must stay free (MIN_FREE_DISK_GB)",
            )

    def end(self, pull: Progress) -> None:
        """It writes no more."""
        with self._lock:
            self._promised.pop(pull, None)

    def _give(self, pull: Progress, needed: int) -> bool:
        with self._lock:
            if needed and self._free() < needed + self._min_free_gb * GIB + self._outstanding():
                return False
            if needed:
                self._promised[pull] = needed
            return True

    def _outstanding(self) -> int:
        """Bytes that were promised and are not written yet."""
        return sum(min(needed, pull.remaining) for pull, needed in list(self._promised.items()))

    def _free(self) -> int:
        return shutil.disk_usage(self._folder).free
