"""What presses on the agent from outside: slow clients, a clock that steps, limits of the system."""

import os
import secrets
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from resource import RLIMIT_NOFILE, prlimit
from threading import Lock
from typing import ClassVar

import websocket

from contrib.chaos import processes
from contrib.chaos.memory import Memory
from contrib.chaos.weather import CLOCK, DESCRIPTORS, THREADS
from contrib.chaos.world import World

PIDS = Path("/sys/fs/cgroup/pids")  # the control group that limits how many threads there are
HALF_A_REQUEST = b"POST /instances HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{"


class Pressure:
    """Each public method is one fault, from its begin to its end; `chance` decides how hard it is."""

    # How often each comes, out of a whole deck.
    DECK: ClassVar[dict[str, int]] = {
        "step_clock": 2,
        "halve_requests": 2,
        "hold_streams": 2,
        "exhaust_threads": 1,
        "exhaust_descriptors": 1,
    }

    def __init__(self, world: World, memory: Memory):
        self._world = world
        self._memory = memory
        self._clock, self._limits = Lock(), Lock()  # one fault of each at a time

    def step_clock(self, chance: Random) -> None:
        """The agent's wall clock is wrong for some seconds, and then right again."""
        with self._clock, self._world.weather.spell(CLOCK):
            self._world.clock.step(chance.choice((-7200, -60, -1, 1, 60, 7200)))
            time.sleep(chance.uniform(1, 6))
            self._world.clock.step(0)

    def halve_requests(self, chance: Random) -> None:
        """Connections that send half a request, or nothing, and wait."""
        with ExitStack() as stack:
            for number in range(40):
                with suppress(OSError):
                    connection = socket.create_connection(("127.0.0.1", self._world.agent.port), 5)
                    stack.enter_context(connection)
                    connection.sendall(HALF_A_REQUEST[: number * len(HALF_A_REQUEST) // 40])
            time.sleep(chance.uniform(2, 8))

    def hold_streams(self, chance: Random) -> None:
        """Streams that nobody reads."""
        slots = sorted(self._memory.slots.items())
        with ExitStack() as stack:
            for _ in range(6):
                if not slots:
                    return
                url = (
                    f"{self._world.agent.url.replace('http', 'ws')}/instances/{chance.choice(slots)[1]}/logs"
                )
                with suppress(OSError, websocket.WebSocketException):
                    stream = websocket.create_connection(
                        url, timeout=5, header=[f"X-API-Key: {self._world.agent.key}"]
                    )
                    stack.callback(stream.shutdown)
            time.sleep(chance.uniform(2, 8))

    def exhaust_threads(self, chance: Random) -> None:
        """The agent can start neither threads nor processes for some seconds."""
        if not self._world.root or not os.access(PIDS, os.W_OK):
            return
        group = PIDS / f"solarhost-chaos-{secrets.token_hex(4)}"
        with self._limits, self._world.weather.spell(THREADS):
            worker = self._world.worker_pid()
            if worker is None:
                return
            group.mkdir()
            try:
                (group / "cgroup.procs").write_text(str(worker))
                (group / "pids.max").write_text((group / "pids.current").read_text())
                time.sleep(chance.uniform(1, 5))
            except OSError:  # the worker was killed meanwhile
                pass
            finally:
                _dissolve(group)

    def exhaust_descriptors(self, chance: Random) -> None:
        """The agent can open no file and no connection for some seconds."""
        with self._limits, self._world.weather.spell(DESCRIPTORS), suppress(ProcessLookupError):
            worker = self._world.worker_pid()
            if worker is None:
                return
            before = prlimit(worker, RLIMIT_NOFILE)
            used = len(processes.open_files(worker))
            prlimit(worker, RLIMIT_NOFILE, (used + chance.randrange(3), before[1]))
            time.sleep(chance.uniform(1, 5))
            prlimit(worker, RLIMIT_NOFILE, before)


def _dissolve(group: Path) -> None:
    """Give the processes of a control group back to the one above it."""
    (group / "pids.max").write_text("max")
    while True:
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):  # it has ended
                (PIDS / "cgroup.procs").write_text(pid)
        try:
            group.rmdir()
            return
        except OSError:  # something was started meanwhile
            time.sleep(0.05)
