"""The agent's side of a worker: spawned, listened to, killed, reaped."""

import json
import logging
import os
import selectors
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from subprocess import PIPE, Popen
from threading import Lock
from typing import Any

from solarhost.modelstore.job import Job

logger = logging.getLogger(__name__)

LINE_MAX_BYTES = 64 << 20
STDERR_LINES = 20


class WorkerEnded(Exception):
    """The worker closed its output; `why` is its exit in words."""


class WorkerProcess:
    """One worker in a process group of its own. `kill` may be called from any thread, the rest from one."""

    def __init__(self, job: Job, environment: Mapping[str, str]):
        self._selector = selectors.DefaultSelector()  # first: without one nobody would end the process
        self._process = Popen(
            [sys.executable, "-m", f"solarhost.modelstore.{job.kind}_worker"],
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=dict(environment),
            process_group=0,
            bufsize=0,
        )
        self.pid = self._process.pid
        self._lock = Lock()  # so that no signal goes to a process group whose number is free again
        self._unread = b""
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            self._selector.register(stream, selectors.EVENT_READ)
        self._write(json.dumps(asdict(job)))

    def go(self) -> None:
        """Let it download."""
        self._write("go")

    def receive(self, timeout_s: float) -> Sequence[dict[str, Any]]:
        """Its next messages; none when it said nothing for `timeout_s`.

        Raises:
            WorkerEnded: there will be no more.
        """
        messages: list[dict[str, Any]] = []
        for key, _ in self._selector.select(timeout_s):
            data = os.read(key.fd, 1 << 16)
            if key.fileobj is self._process.stderr:
                self._stderr.extend(data.decode("utf-8", "replace").splitlines())
                if not data:
                    self._selector.unregister(key.fileobj)
            elif not data or len(self._unread) > LINE_MAX_BYTES:
                raise WorkerEnded
            else:
                *lines, self._unread = (self._unread + data).split(b"\n")
                messages += [json.loads(line) for line in lines]
        return messages

    def kill(self) -> None:
        """End it and whatever it started, now."""
        with self._lock:
            if self._process.returncode is None:
                os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> str:
        """Make sure that it is gone, with whatever it started, and say how it ended."""
        self.kill()
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            code = self._process.wait()
        self._selector.close()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
        if code > 0:
            logger.warning("pull worker %d failed: %s", self.pid, "\n".join(self._stderr))
        return f"exit code {code}" if code >= 0 else f"signal {-code}"

    def _write(self, line: str) -> None:
        """A worker that is gone already is noticed by `receive`."""
        rest = memoryview(line.encode() + b"\n")
        assert self._process.stdin is not None
        try:
            while rest:
                rest = rest[self._process.stdin.write(rest) or 0 :]
        except BrokenPipeError:
            logger.debug("worker %d ended before it was told all", self.pid)
