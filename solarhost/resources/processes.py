"""What the kernel says about processes: who descends from whom, and what they hold."""

import re
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import psutil

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
_INDEX = re.compile(r"[0-9]{1,9}")


def lineage(pid: int) -> frozenset[int]:
    """The pid, its session's leader and all its ancestors; only the pid when it is gone.

    The session tells an instance's processes even after a parent between them has ended.
    """
    found = {pid}
    parent = pid
    while parent > 1:
        try:
            stat = (PROC / str(parent) / "stat").read_text(errors="replace")
        except OSError:
            break
        fields = stat.rpartition(")")[2].split()  # after the name, which may hold anything
        if parent == pid:
            found.add(int(fields[3]))
        parent = int(fields[1])
        found.add(parent)
    return frozenset(found - {0, 1})


def name(pid: int) -> str | None:
    try:
        return (PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return None


def visible_gpus(pid: int) -> list[int | str]:
    """What `CUDA_VISIBLE_DEVICES` of a running process names, none when it is unset or out of sight."""
    try:
        environment = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
    for variable in environment:
        key, _, value = variable.decode(errors="replace").partition("=")
        if key == "CUDA_VISIBLE_DEVICES":
            return [int(name) if _INDEX.fullmatch(name) else name for name in value.split(",") if name]
    return []


class Families:
    """Who descends from whom, as it was when first asked: one look at all processes for many questions."""

    def __init__(self) -> None:
        self._children: dict[int, list[int]] | None = None

    def members(self, roots: Collection[int]) -> set[int]:
        """Those of the processes that there are, and their descendants."""
        found: set[int] = set()
        waiting = [pid for pid in roots if psutil.pid_exists(pid)]
        if not waiting:
            return found
        if self._children is None:
            self._children = _children()
        while waiting:
            pid = waiting.pop()
            if pid not in found:
                found.add(pid)
                waiting += self._children.get(pid, [])
        return found


def _children() -> dict[int, list[int]]:
    children = defaultdict(list)
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            children[process.ppid()].append(process.pid)
    return children


def tree_ram(pids: Collection[int], families: Families) -> int | None:
    """RAM of these processes and their descendants without shared file pages, None when all are gone.

    File pages of a mapped model count as available memory, so counting them here would promise them twice.
    """
    used = []
    for pid in families.members(pids):
        with suppress(psutil.Error):
            memory = psutil.Process(pid).memory_info()
            used.append(memory.rss - getattr(memory, "shared", 0))
    return sum(used) if used else None


def container_ram(pids: Collection[int], families: Families) -> int | None:
    """RAM of the containers that these processes are the first of, without page cache.

    Read from the cgroup, where Docker reads it too; where that is out of sight, from the processes.
    """
    total = 0
    for pid in pids:
        used = _cgroup_ram(pid)
        if used is None:
            return tree_ram(pids, families)
        total += used
    return total if pids else None


def _cgroup_ram(pid: int) -> int | None:
    try:
        lines = (PROC / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if path == "/":
            continue  # the root group holds the whole machine
        if controllers == "":
            used = _used(CGROUPS / path.lstrip("/"), "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            used = _used(CGROUPS / "memory" / path.lstrip("/"), "memory.usage_in_bytes", "cache")
        else:
            continue
        if used is not None:
            return used
    return None


def _used(group: Path, usage_file: str, cache_key: str) -> int | None:
    try:
        usage = int((group / usage_file).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return max(0, usage - int(stat.get(cache_key, 0)))
