"""When the system gives this process no further file, thread or memory: said with what was measured.

What is read here without a descriptor is always there; the rest is left out where none is free.
"""

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_NOFILE, RLIMIT_NPROC, getrlimit

GIB = 1 << 30


def is_shortage(error: BaseException | None) -> bool:
    """True where the call itself was fine, and the system had too little for it."""
    return isinstance(error, OSError) and error.errno in _MEASURED


def refused(error: Exception) -> str | None:
    """A sentence about a shortage that came up where nobody reckoned with it; None for other errors."""
    if isinstance(error, OSError) and is_shortage(error):
        return f"the system refused something that this needs: {why(error)}"
    return None


def why(error: OSError) -> str:
    """The system's words for an error; of a shortage also what was measured, and what to do."""
    words = error.strerror or str(error)
    measured = _MEASURED.get(error.errno or 0)
    return f"{words} ({measured()})" if measured else words


def threads() -> str:
    """Of threads, and of processes, which are counted together."""
    running, allowed = threading.active_count(), _limit(RLIMIT_NPROC)
    return (
        f"this process runs {running} threads; its user may have {allowed} threads and processes"
        f"{_control_group()}: raise `ulimit -u`, `pids.max`, or TasksMax of systemd"
    )


def _files() -> str:
    limit = _limit(RLIMIT_NOFILE)
    return f"this process may have {limit} at once: raise `ulimit -n`, or LimitNOFILE of systemd"


def _all_files() -> str:
    with suppress(OSError):
        limit = Path("/proc/sys/fs/file-max").read_text().strip()
        return f"this machine may have {limit} at once: raise `sysctl fs.file-max`"
    return "raise `sysctl fs.file-max`"


def _memory() -> str:
    page = os.sysconf("SC_PAGE_SIZE")
    free, total = (os.sysconf(name) * page / GIB for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"))
    return f"{free:.1f} of {total:.1f} GiB of RAM are free: stop something"


def _control_group() -> str:
    """What its control group may have, where that can be read."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controller, path = line.split(":", 2)
            if controller in ("", "pids"):
                folder = Path("/sys/fs/cgroup", controller, path.lstrip("/"))
                limit, used = ((folder / f"pids.{name}").read_text().strip() for name in ("max", "current"))
                return f", its control group {limit}, {used} of them taken"
    return ""


def _limit(resource: int) -> str:
    soft, _ = getrlimit(resource)
    return "any number" if soft == RLIM_INFINITY else str(soft)


_MEASURED: dict[int, Callable[[], str]] = {
    errno.EMFILE: _files,
    errno.ENFILE: _all_files,
    errno.ENOMEM: _memory,
    errno.EAGAIN: threads,  # of a fork
}
