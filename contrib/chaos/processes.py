"""What the operating system says of the agent's children, read without the agent's own code."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

AGENT_MARK = b"SOLARHOST_TEST_MARK="
CHILD_MARK = b"SOLAR_HOST_CHILD="


@dataclass(frozen=True)
class Child:
    """A living process that an instance started."""

    pid: int
    instance_id: str
    run: int
    leads: bool  # its own session


def children(mark: str) -> list[Child]:
    """Of the agent with this mark; the dead that nobody reaped do not count."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            environment = Path(entry.path, "environ").read_bytes()
            if AGENT_MARK + mark.encode() not in environment or CHILD_MARK not in environment:
                continue
            pid = int(entry.name)
            words = environment.partition(CHILD_MARK)[2].partition(b"\0")[0].decode().split(":")
            if lives(pid):
                found.append(Child(pid, words[1], int(words[2]), os.getsid(pid) == pid))
    return found


def lives(pid: int) -> bool:
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(") ")[2][:1] not in "ZX"
    return False


def listens(pid: int, port: int) -> bool:
    with suppress(psutil.Error):
        connections = psutil.Process(pid).net_connections(kind="tcp")
        return any(c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port for c in connections)
    return False


def threads(pid: int) -> int:
    with suppress(OSError):
        return len(list(Path(f"/proc/{pid}/task").iterdir()))
    return 0


def open_files(pid: int) -> list[str]:
    """What its descriptors lead to."""
    found = []
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.append(str(descriptor.readlink()))
    return found


def sockets(pid: int) -> list[str]:
    """The state of each and where it leads."""
    with suppress(psutil.Error):
        return [f"{c.status} {c.raddr} {c.laddr}" for c in psutil.Process(pid).net_connections("all")]
    return []


def memory_mib(pid: int) -> float:
    """Its own memory, without what it shares."""
    with suppress(psutil.Error):
        return float(psutil.Process(pid).memory_full_info().uss) / 2**20
    return 0.0
