"""Who is alive on this machine, read straight from `/proc` where there is one.

A scan looks at every process, and a start or a stop scans several times, so each look has to cost
microseconds; elsewhere `psutil` gives the same answers more slowly.
"""

import os
from contextlib import suppress
from pathlib import Path

import psutil

_HAS_PROC = Path("/proc/self/environ").exists()
_DEAD = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def pids() -> list[int]:
    """Every process, the dead that nobody reaped included."""
    return psutil.pids()


def lives(pid: int) -> bool:
    """True for a process that runs; one that waits to be reaped does not."""
    if not _HAS_PROC:
        try:
            return psutil.Process(pid).status() not in _DEAD
        except psutil.Error:
            return False
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b") ")[2][:1] not in (b"Z", b"X", b"x")


def variable(pid: int, name: str) -> str | None:
    """An environment variable that a process was started with; None when it has none or can't be asked."""
    if not _HAS_PROC:
        try:
            return psutil.Process(pid).environ().get(name)
        except psutil.Error:
            return None
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            environment = file.read()
    except OSError:
        return None
    before = name.encode() + b"="
    _, found, rest = (b"\0" + environment).partition(b"\0" + before)
    return rest.partition(b"\0")[0].decode("utf-8", "replace") if found else None


def of_session(leader: int) -> list[int]:
    """Living processes of the session or the group of `leader`."""
    found = []
    for pid in pids():
        with suppress(ProcessLookupError, PermissionError):
            if leader in (os.getsid(pid), os.getpgid(pid)) and lives(pid):
                found.append(pid)
    return found
