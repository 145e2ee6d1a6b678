"""Judges the log lines of counting servers: each once, in order, always under the same number."""

import json
import re
import time
from collections import OrderedDict
from contextlib import suppress
from threading import Event, Thread
from typing import Any

import websocket

from contrib.chaos.findings import Findings
from contrib.chaos.memory import Memory
from contrib.chaos.weather import AFTERMATH_S, DISK
from contrib.chaos.world import World

REMEMBERED_LINES = 20_000  # of an instance
COUNTED = re.compile(r"chatter (\d+)")
NEW_RUN = "fake server starting"
SILENCE_S = 0.5  # of a stream that is not behind any more


class Lines:
    """What was seen of one instance's log."""

    def __init__(self, instance_id: str, world: World, findings: Findings):
        self.instance_id = instance_id
        self._world = world
        self._findings = findings
        self._known: OrderedDict[int, str] = OrderedDict()
        self.last = -1  # the newest number seen
        self._announced: int | None = None  # the number that follows a gap which the agent told of
        self._count: tuple[int, int] | None = None  # seq and count of the newest counted line of this run
        self._silent = time.monotonic()  # the last moment at which nothing waited to be read
        self._run_began = 0.0  # or later

    def message(self, message: dict[str, Any]) -> None:
        """The next message of the stream."""
        if "dropped" in message:
            self._announced = int(message["next_seq"])
            return
        seq, line = int(message["seq"]), str(message["line"])
        expected = self._announced if self._announced is not None else self.last + 1
        if self.last >= 0 and seq != expected:
            self._complain("order of a log", f"number {expected}", f"{seq}: {line!r}")
        self._announced = None
        self._compare(seq, line)
        self._check_count(seq, line, gap=seq != self.last + 1)
        self.last = seq

    def silence(self) -> None:
        """The stream has brought all that was printed so far."""
        self._silent = time.monotonic()

    def _compare(self, seq: int, line: str) -> None:
        known = self._known.setdefault(seq, line)
        if known != line:
            self._complain("line of a number", f"{seq}: {known!r}", f"{seq}: {line!r}")
        if len(self._known) > REMEMBERED_LINES:
            self._known.popitem(last=False)

    def _check_count(self, seq: int, line: str, *, gap: bool) -> None:
        if line == NEW_RUN:
            self._count, self._run_began = None, self._silent - AFTERMATH_S
            return
        counted = COUNTED.fullmatch(line)
        if counted is None:
            return
        count = int(counted[1])
        if self._count is not None:
            last_seq, last_count = self._count
            steps = count - last_count
            whole = steps == 1 or (gap and 0 < steps <= seq - last_seq)
            # What found no room on the disk was never in the file, or not to the end of its line.
            cut = str(last_count + 1).startswith(counted[1])
            excused = (steps > 0 or cut) and DISK in self._world.weather.since(self._run_began)
            if not whole and not excused and not (gap and count < last_count):
                self._complain(
                    "count of a log", f"chatter {last_count + 1} after {last_seq}", f"{seq}: {line!r}"
                )
        self._count = (seq, count)

    def _complain(self, kind: str, expected: str, measured: str) -> None:
        self._findings.add(kind, expected, f"{measured} (instance {self.instance_id})")


class Watcher(Thread):
    """Follows the log of whatever instance is in a slot, reconnecting where it broke off, until `stop`."""

    def __init__(self, slot: str, world: World, memory: Memory, findings: Findings):
        super().__init__(name=f"watch-{slot}", daemon=True)
        self._slot = slot
        self._world = world
        self._memory = memory
        self._findings = findings
        self._stopping = Event()
        self.lines = 0

    def run(self) -> None:
        lines: Lines | None = None
        while not self._stopping.wait(0.2):
            instance_id = self._memory.slots.get(self._slot)
            if instance_id is None:
                continue
            if lines is None or lines.instance_id != instance_id:
                lines = Lines(instance_id, self._world, self._findings)
            with suppress(OSError, websocket.WebSocketException):
                self._follow(lines)

    def _follow(self, lines: Lines) -> None:
        url = self._world.agent.url.replace("http", "ws")
        stream = websocket.create_connection(
            f"{url}/instances/{lines.instance_id}/logs?since={lines.last}",
            timeout=2,
            header=[f"X-API-Key: {self._world.agent.key}"],
        )
        stream.settimeout(SILENCE_S)
        read_before = self.lines
        try:
            while not self._stopping.is_set() and self._memory.slots.get(self._slot) == lines.instance_id:
                try:
                    text = stream.recv()
                except websocket.WebSocketTimeoutException:
                    if self.lines > read_before:  # before the first line it may still be about to catch up
                        lines.silence()
                    continue
                if not text:
                    return
                message = json.loads(text)
                if "error" in message:
                    return
                lines.message(message)
                self.lines += 1
        finally:
            stream.shutdown()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        self._stopping.set()
