"""Waiting for a file to grow: inotify where there is one, else a look at its size now and then."""

import ctypes
import os
import select
import time
from contextlib import suppress
from pathlib import Path
from threading import Lock

IN_MODIFY = 0x2
IN_ONESHOT = 0x80000000
SAFETY_S = 5.0  # look at the file this often even when the kernel says nothing
FIRST_POLL_S, LAST_POLL_S = 0.02, 0.25  # without inotify: the pause doubles while nothing comes

_libc = ctypes.CDLL(None, use_errno=True)


class GrowthWatch:
    """Lets one thread sleep until its file changes, a time is up, or another thread calls `wake`.

    The kernel is asked for one notice a wait. A lasting watch would have it work at every write of the
    child, which made a child that prints as fast as it can half as slow again.
    """

    def __init__(self, descriptor: int, path: Path):
        self._file = descriptor
        self._path = path
        self._sleeper, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._inotify = _inotify()  # last: it does without, where the pipe may be refused
        self._lock = Lock()  # guards the descriptors against a wake after the close
        self._closed = False
        self._woken = select.poll()
        self._woken.register(self._sleeper, select.POLLIN)
        self._grown = select.poll()
        self._grown.register(self._sleeper, select.POLLIN)
        if self._inotify is not None:
            self._grown.register(self._inotify, select.POLLIN)

    def wait(self, seen: int, timeout_s: float = SAFETY_S) -> None:
        """Return when the file may differ from the `seen` bytes, when woken, or when the time is up."""
        if self._inotify is None or not _watch_once(self._inotify, self._path):
            self._wait_by_looking(seen, timeout_s)
            return
        if os.fstat(self._file).st_size != seen:  # it grew just before the watch was set
            return
        for descriptor, _ in self._grown.poll(max(0.0, timeout_s) * 1000):
            if descriptor == self._inotify:
                with suppress(BlockingIOError):
                    os.read(descriptor, 4096)
        # The wake byte stays in the pipe: it is meant to end every later wait as well.

    def pause(self, seconds: float) -> None:
        """Let more bytes gather; only `wake` cuts it short."""
        self._woken.poll(seconds * 1000)

    def wake(self) -> None:
        """End the present and every later wait. Safe from any thread, also after the close."""
        with self._lock:
            if not self._closed:
                with suppress(BlockingIOError):
                    os.write(self._waker, b"\0")

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for descriptor in (self._sleeper, self._waker, self._inotify):
                if descriptor is not None:
                    os.close(descriptor)

    def _wait_by_looking(self, seen: int, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        pause_s = FIRST_POLL_S
        while (left := deadline - time.monotonic()) > 0:
            if self._woken.poll(min(pause_s, left) * 1000):
                return
            if os.fstat(self._file).st_size != seen:
                return
            pause_s = min(pause_s * 2, LAST_POLL_S)


def _inotify() -> int | None:
    """A descriptor for watches; None when the system has none (left)."""
    if not hasattr(_libc, "inotify_init1"):
        return None
    descriptor: int = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    return descriptor if descriptor >= 0 else None


def _watch_once(inotify: int, path: Path) -> bool:
    """Have `inotify` become readable at the next write to `path`; False when that can't be."""
    watch: int = _libc.inotify_add_watch(inotify, os.fsencode(path), ctypes.c_uint32(IN_MODIFY | IN_ONESHOT))
    return watch >= 0
