"""The program to beat, `solar-host` 3.8.3 from PyPI, in a virtual environment of its own.

The scripts find it through `PEER=DIR`; without that they measure us alone. `make bench` makes one
(`contrib.setup.peer`).
"""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import requests

from tests.agent import free_port, wait_until

HOME = os.environ.get("PEER")
PYTHON = Path(HOME).absolute() / "bin/python" if HOME else None
KEY = "peer-key"


class Peer:
    def __init__(self, port: int):
        self.port = port
        self.key = KEY
        self.url = f"http://127.0.0.1:{port}"

    def create(self, config: Mapping[str, object]) -> None:
        headers = {"X-API-Key": KEY}
        answer = requests.post(f"{self.url}/instances", json={"config": config}, headers=headers, timeout=30)
        answer.raise_for_status()


@contextmanager
def running_peer() -> Iterator[Peer | None]:
    """The peer in a folder of its own, or None when there is none."""
    if not HOME:
        yield None
        return
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="solarhost-bench-") as folder:
        process = subprocess.Popen(
            [Path(HOME).absolute() / "bin/solar-host"],
            cwd=folder,
            env={
                "PATH": os.environ["PATH"],
                "HOME": folder,
                "API_KEY": KEY,
                "PORT": str(port),
                "HOST": "127.0.0.1",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: _answers(port), 60, "the peer")
            yield Peer(port)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _answers(port: int) -> bool:
    try:
        return requests.get(f"http://127.0.0.1:{port}/health", timeout=2).ok
    except requests.RequestException:
        return False
