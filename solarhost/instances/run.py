"""One child process, from its spawn to its last log line."""

import logging
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from signal import SIGKILL, SIGTERM
from threading import Event

from solarhost.backends.base import Activity, Usage
from solarhost.instances.census import insist
from solarhost.instances.ending import Exit
from solarhost.instances.process import (
    Mark,
    ProcessId,
    members,
    oom_kills,
    session,
    signal_all,
    signal_group,
    wait_all_gone,
    wait_gone,
)
from solarhost.logs.tail import LogTail

logger = logging.getLogger(__name__)

REAP_S = 5.0  # how long SIGKILL may take to be obeyed
DRAIN_S = 5.0  # how long the rest of a log may take to be read


class Run:
    """A child, its log tail and what its log says. Made by the supervisor, which also ends it.

    Its waiter thread alone reaps the child, so each exit is recorded once. `child` is None for a
    process that was adopted: it can be waited for, but its exit code can't be had. `marked` gives all
    processes that carry this host's mark; a look at them is as dear as the machine has processes.
    """

    def __init__(
        self,
        *,
        instance_id: str,
        marked: Callable[[], Mapping[int, Mark]],
        number: int,
        process: ProcessId,
        child: "subprocess.Popen[bytes] | None",
        port: int,
        activity: Activity,
    ):
        self.instance_id = instance_id
        self.number = number
        self.process = process
        self.port = port
        self.activity = activity
        self.usage: tuple[datetime, Usage] | None = None  # last reading of its /metrics
        self.tail: LogTail | None = None
        self.exit: Exit | None = None  # set once its log has been read; guarded by the supervisor's lock
        self.concluded = False  # what it held was given back; guarded by the supervisor's lock
        self._marked = marked
        self._child = child
        self._exited = Event()
        self._ending = Event()
        self._oom_kills_before = oom_kills()

    def wait(self, on_end: Callable[["Run", Exit], None]) -> None:
        """Body of the waiter thread: reap, end what was left behind, read the log to its end, tell.

        Args:
            on_end: called once, when all of that is done.
        """
        if self._child is not None:
            status: int | None = self._child.wait()
        else:
            insist(lambda: wait_gone(self.process, None))
            status = None
        self._exited.set()
        if not self._ending.is_set():  # otherwise `end` gives the rest its grace
            insist(lambda: self._kill_rest(time.monotonic() + REAP_S))
        if self.tail is not None:
            self.tail.finish()
            self.tail.join(DRAIN_S)  # so that a failure is published with the lines that explain it
        on_end(self, Exit.from_wait(status))

    @property
    def exited(self) -> bool:
        return self._exited.is_set()

    def members(self) -> list[int]:
        """Living pids: the child, its group and session, and whoever inherited its mark. Raises Unseen."""
        return members(self.process, self._marked(), self.instance_id)

    def session(self) -> list[int]:
        """Living pids of its session and group alone; a cheaper look."""
        return session(self.process)

    def end(self, grace_s: float) -> list[int]:
        """Terminate the group, kill it and what left it after `grace_s`; return the pids that live on.

        Raises:
            Unseen: nobody can tell now what lives on.
        """
        self._ending.set()
        deadline = time.monotonic() + grace_s
        if self.exited:
            signal_all(self.session(), SIGTERM)
        else:
            signal_group(self.process.pid, SIGTERM)
        self._exited.wait(grace_s)
        wait_all_gone(self.session(), deadline)
        return self._kill_rest(time.monotonic() + REAP_S)

    def _kill_rest(self, deadline: float) -> list[int]:
        while True:
            rest = self.members()
            if not rest or time.monotonic() >= deadline:
                return rest
            signal_all(rest, SIGKILL)
            wait_all_gone(rest, deadline)

    def killed_for_memory(self) -> bool:
        """True when the kernel killed a process for lack of memory since this run began."""
        now = oom_kills()
        return now is not None and self._oom_kills_before is not None and now > self._oom_kills_before

    def feed(self, lines: Sequence[str]) -> bool:
        """Hand new log lines to the parser of this run."""
        return self.activity.feed(lines, datetime.now(UTC))
