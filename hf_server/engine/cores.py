"""How many threads torch works with: as many as other programs leave it cores.

Its threads wait for each other after every operation, and spin while they wait. One that has to share its
core with another program holds up all the others: on two cores with other work on them, the next token of
an answer took 600 ms with two threads and 30 with one, and used fifteen times the processor time.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import psutil
import torch

_EVERY_S = 0.5


class Reading(NamedTuple):
    """Seconds since some time in the past."""

    at: float
    idle: float  # of all cores together
    own: float  # processor time of this process


def read() -> Reading:
    cpu = psutil.cpu_times()
    waiting = getattr(cpu, "iowait", 0.0)  # for a disk, on Linux: such a core is free too
    return Reading(time.monotonic(), cpu.idle + waiting, time.process_time())


class Cores:
    """Watched while there is work: what others do while this process rests says nothing about later."""

    def __init__(self, read: Callable[[], Reading] = read):
        self._read = read
        self._most = self._left = torch.get_num_threads()
        self._begun: Reading | None = read()  # None while resting
        self._worked_s = 0.0  # since the last judgement, up to `_begun`
        self._free_s = 0.0  # time of cores meanwhile that was idle or ours

    def left(self) -> int:
        """How many of the cores are there for us, at least 1; judged anew from time to time."""
        self.resume()
        assert self._begun is not None
        if self._worked_s + time.monotonic() - self._begun.at >= _EVERY_S:
            self.rest()
            self.resume()
            self._left = min(self._most, max(1, round(self._free_s / self._worked_s)))
            self._worked_s = self._free_s = 0.0
        return self._left

    def rest(self) -> None:
        """There is nothing to do now."""
        if self._begun:
            now = self._read()
            self._worked_s += now.at - self._begun.at
            self._free_s += now.idle - self._begun.idle + now.own - self._begun.own
            self._begun = None

    def resume(self) -> None:
        """There is something to do."""
        if self._begun is None:
            self._begun = self._read()
