"""A real agent in a folder of its own, as a program that the tests talk to over HTTP."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import requests

STARTED_WITHIN_S = 60.0  # of a machine that does much else
STOPPED_WITHIN_S = 60.0
COMMAND = (sys.executable, "-m", "solarhost", "serve")
ROOT = Path(__file__).resolve().parents[1]


def free_port() -> int:
    """A port that nobody holds right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """Wait for a true value and return it."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.02)
    return value


class Agent:
    """One agent at a time; `start` again after `stop` or `kill` continues with the same folder.

    Everything that it starts carries a mark in its environment, so that what it leaves behind is
    found even when it left the process group.
    """

    def __init__(self, folder: Path, settings: dict[str, str], command: Sequence[str] = COMMAND):
        self.folder = folder
        self._command = command
        self.key = "test-key-" + secrets.token_hex(8)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self.output = folder / "agent.log"
        self.mark = secrets.token_hex(16)  # SOLARHOST_TEST_MARK in the environment of all that it starts
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers["X-API-Key"] = self.key
        self._settings = {
            "API_KEY": self.key,
            "HOST": "127.0.0.1",
            "PORT": str(self.port),
            "START_PORT": str(free_port()),
            "CONFIG_FILE": str(folder / "config.json"),
            "LOG_DIR": str(folder / "logs"),
            "MODELS_DIR": str(folder / "models"),
            "JOBS_DIR": str(folder / "jobs"),
            "STOP_TIMEOUT_S": "5",
            **settings,
        }

    def spawn(self) -> subprocess.Popen[bytes]:
        """Run it without waiting; for starts that are meant to fail."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SOLARHOST_TEST_MARK": self.mark,
            **self._settings,
        }
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                self._command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.process

    def start(self) -> None:
        """Run it and wait until it answers."""
        process = self.spawn()
        wait_until(lambda: process.poll() is not None or self._is_healthy(), STARTED_WITHIN_S, "the agent")
        assert process.poll() is None, f"the agent ended with {process.returncode}: {self.log()}"

    def stop(self) -> int:
        """End it as an operator does; returns its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOPPED_WITHIN_S)

    def kill(self) -> None:
        """End all of the agent's own processes at once, as a crash would; its children stay."""
        assert self.process is not None
        for process in self.own_processes():
            process.kill()
        self.process.wait(STOPPED_WITHIN_S)
        psutil.wait_procs(self.own_processes(), timeout=STOPPED_WITHIN_S)

    def own_processes(self) -> list[psutil.Process]:
        """Master and worker."""
        assert self.process is not None
        return [process for process in self.left_alive() if _group(process) == self.process.pid]

    def left_alive(self) -> list[psutil.Process]:
        """Every living process that this agent started, and itself."""
        return marked_processes(self.mark)

    def log(self) -> str:
        """What the agent printed."""
        return self.output.read_text(errors="replace")

    def request(self, method: str, path: str, **options: Any) -> requests.Response:
        options.setdefault("timeout", 60)
        return self._session.request(method, self.url + path, **options)

    def get(self, path: str, **options: Any) -> requests.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, json: object = None, **options: Any) -> requests.Response:
        return self.request("POST", path, json=json, **options)

    def create(self, config: dict[str, Any], **keys: Any) -> str:
        """Create an instance; returns its id."""
        answer = self.post("/instances", {"config": config, **keys})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["instance"]["id"])

    def instance(self, instance_id: str) -> dict[str, Any]:
        answer = self.get(f"/instances/{instance_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def wait_for_status(self, instance_id: str, status: str, timeout_s: float = 30) -> dict[str, Any]:
        seen: dict[str, Any] = {}

        def reached() -> bool:
            seen.update(self.instance(instance_id))
            return bool(seen["status"] == status)

        try:
            wait_until(reached, timeout_s, f"instance {instance_id} to be {status}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {seen}\n{self.log()}") from error
        return seen

    def end(self) -> None:
        """Stop it if it runs, and make sure that nothing of it is alive."""
        if self.process is not None and self.process.poll() is None:
            self.stop()
        left = self.left_alive()
        commands = [" ".join(process.cmdline()) for process in left if process.is_running()]
        for process in left:
            process.kill()
        self._session.close()
        assert not commands, f"the agent left these alive: {commands}\n{self.log()}"

    def _is_healthy(self) -> bool:
        try:
            return self.get("/health", timeout=2).status_code == 200
        except requests.RequestException:
            return False


def marked_processes(mark: str) -> list[psutil.Process]:
    """All living processes that have `SOLARHOST_TEST_MARK=mark` in their environment."""
    return [process for process in psutil.process_iter() if _has_mark(process, mark)]


def _has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        return (
            process.environ().get("SOLARHOST_TEST_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.Error:
        return False


def _group(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None
