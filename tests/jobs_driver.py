"""An agent that does jobs only, and dies by SIGKILL at a chosen point.

    python -m tests.jobs_driver JOBS_DIR DOCKER_HOST EVENTS [--die POINT] [--submit JSON] [--cancel ID]

Runs until all jobs have ended, SIGTERM (an orderly end), or the point: `before:Class.method:N` or
`after:Class.method:N` of a part's call, `on:event:N` once the event of that name is in EVENTS.
Every event becomes a line of EVENTS, on disk before the call returns; then control has it, unless it is
`--away`: nothing becomes a line.
"""

import argparse
import functools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from solarhost.containers.engine import Engine
from solarhost.events import Delivered, JobEvent, StepLogLines
from solarhost.jobs.definitions import parse
from solarhost.jobs.service import JobService
from solarhost.jobs.steplog import StepLog
from solarhost.jobs.store import JobStore
from solarhost.jobs.workspace import Workspaces
from solarhost.problems import Problems
from solarhost.settings import Settings

PARTS = {part.__name__: part for part in (Engine, JobStore, StepLog, Workspaces)}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # the signal comes at once, but maybe not within this line


def die_around(moment: str, target: str, count: int) -> None:
    """Make the `count`th call of `Class.method` the last thing that this process does."""
    part, name = target.split(".")
    method = getattr(PARTS[part], name)
    calls = 0

    @functools.wraps(method)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if moment == "before" and calls == count:
            die()
        result = method(*args, **kwargs)
        if moment == "after" and calls == count:
            die()
        return result

    setattr(PARTS[part], name, wrapper)


class EventFile:
    """What control has. A process may die by an event after control took it, and before that is known."""

    def __init__(self, path: Path, fatal: str | None, count: int):
        self._file = path.open("ab", buffering=0)
        self._file.write(b"\n")  # the last one may have died within a line
        self._fatal, self._left = fatal, count
        self.delivered: Delivered = lambda event: None

    def publish(self, event: Any) -> None:
        if isinstance(event, StepLogLines):
            self._write(event.entries)
        if isinstance(event, JobEvent):
            is_log = event.name == "step_log"
            self._write(event.payload["entries"] if is_log else [{"event": event.name, **event.payload}])
            if event.name == self._fatal:
                self._left -= 1
                if self._left == 0:
                    die()
            self.delivered(event)

    def _write(self, entries: Sequence[dict[str, Any]]) -> None:
        self._file.write(b"".join(json.dumps(entry).encode() + b"\n" for entry in entries))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("jobs_dir", type=Path)
    parser.add_argument("docker_host")
    parser.add_argument("events", type=Path)
    parser.add_argument("--die", default="never::1")
    parser.add_argument("--submit", action="append", default=[])
    parser.add_argument("--cancel")
    parser.add_argument("--away", action="store_true")
    given = parser.parse_args()
    moment, target, count = given.die.split(":")
    if moment in ("before", "after"):
        die_around(moment, target, int(count))
    events = EventFile(given.events, target if moment == "on" else None, int(count))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    settings = Settings(jobs_dir=given.jobs_dir, docker_host=given.docker_host, min_free_disk_gb=0.0)
    publish = (lambda event: None) if given.away else events.publish
    service = JobService(settings, publish, Problems(), lambda: None, lambda: 0)
    events.delivered = service.delivered
    service.start()
    for text in given.submit:
        service.submit(parse(json.loads(text)))
    if given.cancel:
        service.cancel(given.cancel)
    while not stop.wait(0.02) and (busy(service) or leftovers(given)):
        pass
    service.close(time.monotonic() + 10)
    sys.exit(0)


def busy(service: JobService) -> bool:
    return any(not job.status.is_terminal or job.cancel_requested for job in service.list())


def leftovers(given: argparse.Namespace) -> bool:
    """The sweep comes a few seconds after the start."""
    return bool(Engine(given.docker_host).find({"solarhost.jobs-dir": str(given.jobs_dir.resolve())}))


if __name__ == "__main__":
    main()
