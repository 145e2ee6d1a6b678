"""A child's identity and everything that belongs to it, asked from the operating system.

A number alone never identifies a process, since the kernel gives it to another one later. So a child
is known by its pid, the moment it started (in the kernel's own ticks, with the boot's id), and a mark
in its environment that carries this host's identity, the instance, and a digest of its command.
"""

import hashlib
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import psutil

from solarhost.instances import census
from solarhost.settings import environment_without_secrets

MARK = "SOLAR_HOST_CHILD"
_RUN = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Which process, for certain, also after a restart of this agent."""

    pid: int
    started: str
    digest: str

    def alive(self) -> bool:
        """True while exactly this process runs (a zombie does not). Raises Unseen."""
        try:
            return start_mark(self.pid) == self.started and census.lives(self.pid)
        except (psutil.NoSuchProcess, OSError):
            return False


@dataclass(frozen=True, slots=True)
class Mark:
    """What a child carries in its environment; its children inherit it."""

    host: str
    instance_id: str
    run: int
    digest: str

    def __str__(self) -> str:
        return f"{self.host}:{self.instance_id}:{self.run}:{self.digest}"

    @classmethod
    def parse(cls, text: str) -> "Mark | None":
        parts = text.split(":")
        if len(parts) != 4 or not _RUN.fullmatch(parts[2]):
            return None
        return cls(parts[0], parts[1], int(parts[2]), parts[3])


def command_digest(argv: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(argv).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def host_identity(config_file: Path) -> str:
    """Names this agent's children on this machine; the same after any restart or loss of a file.

    Raises:
        Unseen: the machine's own identity can't be read now.
    """
    place = f"{_machine_id()}\0{config_file.resolve()}"
    return hashlib.sha256(place.encode()).hexdigest()[:16]


def _machine_id() -> str:
    for path in (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")):
        with suppress(OSError):
            return census.patiently(path.read_text).strip()
    return os.uname().nodename


@cache
def _boot_id() -> str:
    try:
        return census.patiently(Path("/proc/sys/kernel/random/boot_id").read_text).strip()
    except OSError:
        return str(int(psutil.boot_time()))


def start_mark(pid: int) -> str:
    """When `pid` started, in a form that no other process of any boot shares with the same pid.

    Raises:
        OSError, psutil.NoSuchProcess: there is no such process.
        Unseen: nobody can tell now.
    """
    try:
        stat = census.patiently(Path(f"/proc/{pid}/stat").read_text)
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            raise
        return f"{_boot_id()}/{psutil.Process(pid).create_time()}"
    # The second field is the program's name in brackets and may hold anything; the 22nd is the start.
    return f"{_boot_id()}/{stat.rpartition(')')[2].split()[19]}"


def spawn(
    argv: Sequence[str], environment: Mapping[str, str], mark: Mark, log_path: Path
) -> "subprocess.Popen[bytes]":
    """Start a child in its own session, its output appended straight to `log_path`.

    Raises:
        OSError: the program can't be run, or the log can't be opened.
    """
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**environment_without_secrets(), **environment, MARK: str(mark)},
            start_new_session=True,
        )
    finally:
        os.close(log)


def marked(host: str) -> dict[int, Mark]:
    """Every living process on this machine that carries a mark of `host`, by pid."""
    found = {}
    for pid in census.pids():
        mark = read_mark(pid)
        if mark and mark.host == host and census.lives(pid):
            found[pid] = mark
    return found


def read_mark(pid: int) -> Mark | None:
    """The mark of a process, None when it has none or can't be asked; whether it lives is another look."""
    text = census.variable(pid, MARK)
    return Mark.parse(text) if text else None


def members(process: ProcessId, marks: Mapping[int, Mark], instance_id: str) -> list[int]:
    """Living processes of a child: its session and group, and whoever carries the instance's mark.

    Args:
        marks: what `marked` has just found.

    Raises:
        Unseen.
    """
    carriers = [pid for pid, mark in marks.items() if mark.instance_id == instance_id]
    return list(dict.fromkeys([*session(process), *carriers]))


def session(process: ProcessId) -> list[int]:
    """Living processes of a child's session and group; cheaper than `members`. Raises Unseen."""
    with suppress(OSError, psutil.NoSuchProcess):
        if start_mark(process.pid) != process.started:
            return []  # the number is somebody else's by now, and so is its session
    return census.of_session(process.pid)


def wait_all_gone(pids: Iterable[int], deadline: float) -> bool:
    """Wait until none of `pids` lives; False when one still does at `time.monotonic()` == `deadline`."""
    for pid in pids:
        try:
            process = ProcessId(pid, start_mark(pid), "")
        except (OSError, psutil.NoSuchProcess):
            continue
        if not wait_gone(process, max(0.0, deadline - time.monotonic())):
            return False
    return True


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Signal each of them; one that is gone already is fine."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def signal_group(leader: int, number: signal.Signals) -> None:
    """Signal a child's whole process group at once."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def wait_gone(process: ProcessId, timeout_s: float | None) -> bool:
    """Wait until a process that is not our child has ended; False when it still runs after `timeout_s`."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    except (AttributeError, OSError):  # no pidfd on this kernel
        return _poll_gone(process, timeout_s)
    try:
        if not process.alive():  # the pid may have passed to another one before it was opened
            return True
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(None if timeout_s is None else timeout_s * 1000))
    finally:
        os.close(descriptor)


def _poll_gone(process: ProcessId, timeout_s: float | None) -> bool:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while process.alive():
        if deadline is not None and time.monotonic() >= deadline:
            return False
        time.sleep(0.1)
    return True


def listens(pids: Iterable[int], port: int) -> bool | None:
    """Whether one of `pids` holds the listening socket of `port`; None when that can't be seen."""
    seen = False
    for pid in pids:
        try:
            connections = census.patiently(partial(psutil.Process(pid).net_connections, "tcp"))
        except psutil.AccessDenied:
            continue
        except psutil.Error:
            seen = True
            continue
        seen = True
        if any(c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port for c in connections):
            return True
    return False if seen else None


def oom_kills() -> int | None:
    """How many processes the kernel killed for lack of memory since boot; None when it doesn't say."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


@dataclass(frozen=True, slots=True)
class Effort:
    """How much a child has done so far; more than before means that it is still loading."""

    bytes_read: int
    resident: int

    def beyond(self, earlier: "Effort", step: int = 1 << 20) -> bool:
        return self.bytes_read - earlier.bytes_read >= step or abs(self.resident - earlier.resident) >= step


def effort(pids: Iterable[int]) -> Effort:
    """Bytes read (cached ones too) and resident memory of some processes, summed."""
    read = resident = 0
    for pid in pids:
        with suppress(psutil.Error, OSError, ValueError, IndexError):
            process = psutil.Process(pid)
            resident += process.memory_info().rss
            rchar = Path(f"/proc/{pid}/io").read_text().split("\n", 1)[0]
            read += int(rchar.split()[1])
    return Effort(read, resident)
