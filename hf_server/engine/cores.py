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
    return Reading(time.monotonic(), psutil.cpu_times().idle, time.process_time())


class Cores:
    """Used by the thread that owns the model: the number of threads holds for the one that sets it."""

    def __init__(self, read: Callable[[], Reading] = read):
        self._read = read
        self._most = torch.get_num_threads()
        self._last = read()

    def adapt(self) -> None:
        """Look at the cores from time to time, and change the number of threads to fit."""
        if time.monotonic() - self._last.at < _EVERY_S:
            return
        now = self._read()
        left = (now.idle - self._last.idle + now.own - self._last.own) / (now.at - self._last.at)
        self._last = now
        threads = min(self._most, max(1, round(left)))
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)
