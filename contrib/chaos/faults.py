"""What goes wrong: faults of the agent, of its servers, and of what it depends on."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random
from threading import Lock
from typing import ClassVar

import docker
import psutil
import requests

from contrib.chaos import processes
from contrib.chaos.findings import Findings
from contrib.chaos.memory import Memory
from contrib.chaos.weather import AGENT, CONTROL, DISK, DOCKER, REGISTRY
from contrib.chaos.world import World

BLOCK = bytes(1 << 20)

ENDING_THE_AGENT = ("kill_worker", "kill_master", "kill_agent", "restart_agent")
SOURCE_FAULTS: tuple[dict[str, object], ...] = (
    {"status": 500},
    {"status": 429, "headers": {"Retry-After": "1"}},
    {"stall_at": 100_000},
    {"reset_at": 500_000},
    {"truncate_at": 300_000},
    {"flip_at": 200_000},
    {"ignore_range": True},
    {"bytes_per_s": 400_000.0},
)


class Faults:
    """Each public method is one fault, from its begin to its end; `chance` decides what it hits."""

    # How often each comes, out of a whole deck.
    DECK: ClassVar[dict[str, int]] = {
        "kill_worker": 2,
        "freeze_worker": 1,
        "kill_master": 1,
        "kill_agent": 1,
        "restart_agent": 1,
        "kill_instance": 5,
        "freeze_instance": 4,
        "kill_pull": 3,
        "kill_container": 2,
        "fill_disk": 1,
        "stop_docker": 1,
        "kill_docker": 1,
        "freeze_docker": 1,
        "kill_control": 1,
        "freeze_control": 1,
        "drop_control": 1,
        "break_source": 8,
    }

    def __init__(self, world: World, memory: Memory, findings: Findings):
        self._world = world
        self._memory = memory
        self._findings = findings
        # One at a time of those that share what they break.
        self._control, self._docker, self._disk = Lock(), Lock(), Lock()

    # -- the agent

    def kill_worker(self, chance: Random) -> None:
        """Once, or again and again while the next one begins."""
        with self._world.agent_down():
            self._forget_reservations()
            for _ in range(chance.choice((1, 1, 4))):
                worker = self._world.worker_pid()
                if worker is not None:
                    _signal(worker, signal.SIGKILL)
                time.sleep(chance.uniform(0, 2))

    def freeze_worker(self, chance: Random) -> None:
        with self._world.agent_lock, self._world.weather.spell(AGENT):
            worker = self._world.worker_pid()
            if worker is not None:
                _signal(worker, signal.SIGSTOP)
                time.sleep(chance.uniform(1, 8))
                _signal(worker, signal.SIGCONT)

    def kill_master(self, _chance: Random) -> None:
        """The worker sees that it is alone and ends; a supervisor starts the agent again."""
        with self._world.agent_down():
            self._forget_reservations()
            assert self._world.agent.process is not None
            self._world.agent.process.kill()
            self._world.agent.process.wait()

    def kill_agent(self, _chance: Random) -> None:
        with self._world.agent_down():
            self._forget_reservations()
            self._world.agent.kill()

    def restart_agent(self, _chance: Random) -> None:
        with self._world.agent_down():
            self._forget_reservations()
            code = self._world.agent.stop()
            if code != 0:
                self._findings.add("exit code", "0 after SIGTERM", str(code))

    def _forget_reservations(self) -> None:
        """They are in the worker's memory alone."""
        self._memory.reservations.forget()

    # -- servers, downloads, containers

    def kill_instance(self, chance: Random) -> None:
        children = processes.children(self._world.agent.mark)
        if children:
            _signal(chance.choice(sorted(children, key=lambda child: child.instance_id)).pid, signal.SIGKILL)

    def freeze_instance(self, chance: Random) -> None:
        leaders = [child for child in processes.children(self._world.agent.mark) if child.leads]
        if leaders:
            pid = chance.choice(sorted(leaders, key=lambda child: child.instance_id)).pid
            _signal(pid, signal.SIGSTOP)
            time.sleep(chance.uniform(0.5, 6))
            _signal(pid, signal.SIGCONT)

    def kill_pull(self, chance: Random) -> None:
        workers = [p for p in self._world.agent.left_alive() if "solarhost.modelstore." in _command(p)]
        with self._world.weather.spell(REGISTRY):
            if workers:
                _signal(chance.choice(workers).pid, signal.SIGKILL)

    def kill_container(self, chance: Random) -> None:
        if self._world.engine is None:
            return
        with (
            self._world.weather.spell(DOCKER),
            suppress(docker.errors.DockerException, requests.RequestException),
        ):
            names = self._world.engine.containers()
            if names:
                self._world.engine.client.kill(chance.choice(names))

    # -- what the agent depends on

    def fill_disk(self, chance: Random) -> None:
        """Not a byte is left for some seconds."""
        if not self._world.root:
            return
        ballast = self._world.disk / "ballast"
        with self._disk, self._world.weather.spell(DISK):
            try:
                with suppress(OSError), ballast.open("wb", buffering=0) as file:
                    until = time.monotonic() + chance.uniform(1, 6)
                    size = len(BLOCK)
                    while time.monotonic() < until:
                        try:
                            file.write(BLOCK[:size])
                        except OSError:
                            size = max(1, size // 2)
                            time.sleep(0.01)
            finally:
                ballast.unlink(missing_ok=True)

    def stop_docker(self, chance: Random) -> None:
        self._restart_docker(chance, lambda engine: engine.stop())

    def kill_docker(self, chance: Random) -> None:
        self._restart_docker(chance, lambda engine: engine.kill())

    def _restart_docker(self, chance: Random, end: Callable[..., None]) -> None:
        if self._world.engine is None:
            return
        with self._docker, self._world.weather.spell(DOCKER):
            end(self._world.engine)
            time.sleep(chance.uniform(0, 4))
            self._world.engine.start()

    def freeze_docker(self, chance: Random) -> None:
        if self._world.engine is None:
            return
        with self._docker, self._world.weather.spell(DOCKER):
            self._world.engine.freeze()
            time.sleep(chance.uniform(1, 6))
            self._world.engine.thaw()

    def kill_control(self, chance: Random) -> None:
        with self._control, self._world.weather.spell(CONTROL):
            self._world.control.kill()
            time.sleep(chance.uniform(0, 5))
            self._world.control.start()

    def freeze_control(self, chance: Random) -> None:
        with self._control, self._world.weather.spell(CONTROL):
            self._world.control.freeze()
            time.sleep(chance.choice((2, 12)))
            self._world.control.thaw()

    def drop_control(self, _chance: Random) -> None:
        """Control ends the connection, again and again."""
        with self._control, self._world.weather.spell(CONTROL):
            for _ in range(5):
                self._world.control.do("disconnect")
                time.sleep(0.3)

    def break_source(self, chance: Random) -> None:
        """The next answers of the registry or the hub go wrong."""
        how = chance.choice(SOURCE_FAULTS)
        times = chance.randrange(1, 4)
        with self._world.weather.spell(REGISTRY):
            if chance.random() < 0.5:
                self._world.registry.fault("/blobs/", times=times, **how)
            else:
                self._world.hub.fault("model.gguf", times=times, **how)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _command(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""
