"""Who is alive on this machine, read straight from `/proc` where there is one.

A scan looks at every process, and a start or a stop scans several times, so each look has to cost
microseconds; elsewhere `psutil` gives the same answers more slowly.

A look needs a descriptor. Where none is free nobody is taken for dead: it is tried again, and at last
`Unseen` is raised.
"""

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil

from solarhost.errors import Unavailable
from solarhost.shortages import is_shortage, why

logger = logging.getLogger(__name__)

T = TypeVar("T")
PATIENCE_S = 5.0  # how long a look is tried again while something is short
RETRY_S = 0.05

_HAS_PROC = Path("/proc/self/environ").exists()
_DEAD = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


class Unseen(Unavailable):
    """The system lets nobody look at its processes now, so what lives is not known."""


def patiently(look: Callable[[], T]) -> T:
    """What `look` gives, tried again while descriptors or memory are short.

    Raises:
        Unseen: they were for `PATIENCE_S`.
        OSError: any other that `look` raises.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return look()
        except OSError as error:
            if not is_shortage(error):
                raise
            if time.monotonic() >= deadline:
                raise Unseen(f"what runs on this machine can't be seen: {why(error)}") from error
        time.sleep(RETRY_S)


def insist(look: Callable[[], T]) -> T:
    """What `look` gives, however long it is `Unseen`; for threads that have nothing else to do."""
    while True:
        try:
            return look()
        except Unseen as error:
            logger.warning("%s; looking again", error)


def pids() -> list[int]:
    """Every process, the dead that nobody reaped included. Raises Unseen."""
    return patiently(psutil.pids)


def lives(pid: int) -> bool:
    """True for a process that runs; one that waits to be reaped does not. Raises Unseen."""
    if not _HAS_PROC:
        try:
            return psutil.Process(pid).status() not in _DEAD
        except psutil.Error:
            return False
    try:
        stat = patiently(Path(f"/proc/{pid}/stat").read_bytes)
    except OSError:
        return False
    return stat.rpartition(b") ")[2][:1] not in (b"Z", b"X", b"x")


def variable(pid: int, name: str) -> str | None:
    """An environment variable that a process was started with; None when it has none or is not ours.

    Raises:
        Unseen.
    """
    if not _HAS_PROC:
        try:
            return psutil.Process(pid).environ().get(name)
        except psutil.Error:
            return None
    try:
        environment = patiently(Path(f"/proc/{pid}/environ").read_bytes)
    except OSError:
        return None
    before = name.encode() + b"="
    _, found, rest = (b"\0" + environment).partition(b"\0" + before)
    return rest.partition(b"\0")[0].decode("utf-8", "replace") if found else None


def of_session(leader: int) -> list[int]:
    """Living processes of the session or the group of `leader`. Raises Unseen."""
    found = []
    for pid in pids():
        with suppress(ProcessLookupError, PermissionError):
            if leader in (os.getsid(pid), os.getpgid(pid)) and lives(pid):
                found.append(pid)
    return found
