"""Everything that a run consists of: an agent, its servers, and the services that it depends on."""

import os
import secrets
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

import psutil
import pytest

from contrib.chaos.clock import Clock
from contrib.chaos.findings import say
from contrib.chaos.weather import AGENT, Weather
from contrib.setup.llama_server import ensure_llama_server
from contrib.setup.models import embedding_model, ensure_gguf
from tests.agent import Agent, wait_until
from tests.control_process import ControlProcess
from tests.docker_engine import DockerEngine
from tests.process.models_faults import Content, noise
from tests.process.models_hub import Hub
from tests.process.models_registry import PASSWORD, USER, Registry

FAKE_LLAMA = Path(__file__).resolve().parents[2] / "tests/process/fake_llama.py"
DISK_MIB = 256
RECOVERED_WITHIN_S = 90.0  # of a machine that does much else
REQUEST_THREADS = 24
MIB = 1 << 20
HUB_MODELS = {"tiny/one": 3 * MIB, "tiny/two": 8 * MIB}
ARTIFACTS = {"small": 2 * MIB, "large": 6 * MIB}


class World:
    """Made by `build`; `close` leaves nothing behind but the folder.

    Args:
        live_restore: containers outlive a restart of Docker.
    """

    def __init__(self, folder: Path, *, live_restore: bool):
        self.folder = folder
        self.weather = Weather()
        self.root = os.geteuid() == 0
        self.disk = folder / "disk"
        self.gguf = ensure_gguf()
        self.embedding_model = embedding_model()
        self.agent_lock = Lock()  # one fault of the agent's own processes at a time
        self._mount()
        self.clock = Clock(folder)
        self.hub = Hub()
        self.registry = self._registry()
        self.contents: dict[str, dict[str, Content]] = {}  # files by source URI
        self._publish_models()
        self.engine = self._engine(live_restore)
        self.key = "chaos-key-" + secrets.token_hex(6)
        self.control = ControlProcess(folder, (self.key,))
        self.agent = self._agent()

    def start(self) -> None:
        self.control.start()
        self.agent.start()

    # -- the agent's own processes

    def worker_pid(self) -> int | None:
        """The process that does the work, a child of the gunicorn master; None while there is none."""
        assert self.agent.process is not None
        with suppress(psutil.Error):
            return next((child.pid for child in psutil.Process(self.agent.process.pid).children()), None)
        return None

    def has_ended(self) -> bool:
        """The agent's master is gone."""
        return self.agent.process is not None and self.agent.process.poll() is not None

    @contextmanager
    def agent_down(self) -> Iterator[None]:
        """Within the block the agent is broken; afterwards it works again.

        As under a supervisor such as systemd, a master that has ended is started again until it stays.

        Raises:
            AssertionError: it did not come back in time.
        """
        with self.agent_lock, self.weather.spell(AGENT):
            before = self.worker_pid()
            yield
            wait_until(lambda: self._is_back(before), RECOVERED_WITHIN_S, "the agent to work again")

    def _is_back(self, before: int | None) -> bool:
        """Another worker than `before` answers."""
        if self.has_ended():
            self.agent.spawn()
        worker = self.worker_pid()
        if worker in (None, before):
            return False
        try:
            return self.agent.get("/health", timeout=5).ok and self.worker_pid() == worker
        except OSError:
            return False

    # -- making and ending it

    def close(self) -> None:
        with suppress(AssertionError):  # a finding of the end's own judge
            self.agent.end()
        self.control.kill()
        if self.engine is not None:
            self.engine.close()
        self.hub.end()
        self.registry.end()
        if self.root:
            subprocess.run(["umount", "-l", str(self.disk)], check=False)

    def _mount(self) -> None:
        self.disk.mkdir()
        if self.root:
            words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=755", "chaos", str(self.disk)]
            if subprocess.run(words, check=False).returncode == 0:
                return
            self.root = False
        say("skipped: faults of the disk and of Docker need root")

    def _engine(self, live_restore: bool) -> DockerEngine | None:
        if not self.root:
            return None
        engine = DockerEngine(live_restore=live_restore)
        try:
            engine.prepare()
        except pytest.fail.Exception as error:
            engine.close()
            say(f"skipped: jobs and faults of Docker ({error})")
            return None
        return engine

    def _registry(self) -> Registry:
        folder = self.folder / "registry"
        folder.mkdir()
        return Registry(folder)

    def _publish_models(self) -> None:
        for number, (name, size) in enumerate(HUB_MODELS.items()):
            files = {"config.json": Content(b'{"a": 1}'), "model.gguf": noise(size, number)}
            self.hub.repos[name] = files
            self.contents[f"huggingface://{name}"] = files
        for number, (name, size) in enumerate(ARTIFACTS.items(), 100):
            content = noise(size, number)
            self.registry.push(name, [("model.gguf", b"".join(content.read(0, size)))])
            self.contents[f"repo://{name}:v1"] = {"model.gguf": content}

    def _agent(self) -> Agent:
        folder = self.disk / "agent"
        folder.mkdir()
        settings = {
            **self.clock.environment,
            "LLAMA_SERVER_PATH": str(self._llama_server()),
            "STOP_TIMEOUT_S": "3",
            "MAX_RETRIES": "1",
            "INSTANCE_READY_TIMEOUT_S": "60",
            "INSTANCE_READY_MAX_S": "120",
            "THREADS": str(REQUEST_THREADS),
            "MAX_STREAMS": "12",
            "PING_INTERVAL_S": "5",
            "LOG_BUFFER_SIZE": "5000",
            "LOG_FILE_MAX_MB": "4",
            "MIN_FREE_DISK_GB": "0.01",
            "PULL_STALL_TIMEOUT_S": "3",
            "PULL_RETRIES": "3",
            "PULL_RETRY_DELAY_S": "0.2",
            "PULL_PROGRESS_INTERVAL_S": "1",
            "HF_ENDPOINT": self.hub.url,
            "HARBOR_URL": self.registry.front.url,
            "HARBOR_USERNAME": USER,
            "HARBOR_PASSWORD": PASSWORD,
            "SSL_CERT_FILE": str(self.registry.authority.ca),
            "SOLAR_CONTROL_URL": self.control.url,
            "SOLAR_CONTROL_API_KEY": self.key,
            "HOST_NAME": "chaos",
            "WS_RECONNECT_MAX_DELAY": "3",
            "WS_SILENCE_TIMEOUT": "10",
            "HEALTH_INTERVAL_S": "2",
            "DOCKER_GRACE_S": "30",
            "DOCKER_HOST": self.engine.address if self.engine else f"unix://{self.folder}/no-docker.sock",
        }
        agent = Agent(folder, settings)
        agent.output = self.folder / "agent.log"  # so that it can be read after the disk was full
        return agent

    def _llama_server(self) -> Path:
        """The real one, and a program that counts where an instance's `extra_args` ask for that."""
        path = self.folder / "llama-server"
        path.write_text(
            "#!/bin/sh\n"
            "unset LD_PRELOAD\n"  # the clock is the agent's
            'case " $* " in\n'
            f'*" --chatter "*) exec {sys.executable} {FAKE_LLAMA} "$@" ;;\n'
            f'*) exec {ensure_llama_server()} "$@" ;;\n'
            "esac\n"
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path


@contextmanager
def build(*, live_restore: bool) -> Iterator[World]:
    """A started world in a folder of its own, which stays."""
    folder = Path(tempfile.mkdtemp(prefix="solarhost-chaos-"))
    world = World(folder, live_restore=live_restore)
    try:
        world.start()
        yield world
    finally:
        world.close()
