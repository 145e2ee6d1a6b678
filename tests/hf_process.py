"""hf_server as a process, for tests."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import requests

from tests.agent import ROOT, free_port, wait_until

KEY = "process-key"
STARTED_WITHIN_S = 110


AUDIT = """
import sys
def note(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        with open({path!r}, "a") as file:
            print(event, arguments[-1] if event == "socket.connect" else arguments[:2], file=file)
sys.addaudithook(note)
"""


class Server:
    """A child process. `sitecustomize` in it notes each address that it connects to or looks up.

    Args:
        first: a statement that it runs before it starts.
    """

    def __init__(
        self,
        model: object,
        log: Path,
        *arguments: str,
        environment: Mapping[str, str] = {},
        first: str = "",
    ):
        self.stages: list[tuple[int, dict]] = []  # answers of /health until it was ready
        self.connections = log.with_name("connections")
        hook = log.parent / "hook"
        hook.mkdir()
        (hook / "sitecustomize.py").write_text(AUDIT.format(path=str(self.connections)))
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_path = log
        program = (
            ["-c", f"{first}; from hf_server.__main__ import main; main()"] if first else ["-m", "hf_server"]
        )
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, *program, f"--model-id={model}", "--alias=tiny"),
                    *(f"--port={self.port}", *arguments),
                ],
                env={
                    **os.environ,
                    "PYTHONPATH": f"{ROOT}:{hook}",
                    "SOLAR_API_KEY": KEY,
                    **environment,
                },
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self) -> str:
        return self.log_path.read_text()

    def health(self) -> requests.Response | None:
        try:
            return requests.get(f"{self.url}/health", timeout=10)
        except requests.RequestException:
            return None

    def wait_until_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, self.log()
            answer = self.health()
            if answer is None:
                return False
            self.stages.append((answer.status_code, answer.json()))
            return answer.status_code == 200

        wait_until(ready, STARTED_WITHIN_S, "the model to be ready")

    def metric(self, name: str) -> float:
        text = requests.get(f"{self.url}/metrics", headers={"X-API-Key": KEY}, timeout=30).text
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)
