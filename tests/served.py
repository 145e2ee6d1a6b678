"""The agent's server around the application of `served_program`, for tests of the server alone."""

import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent import Agent, wait_until

PROGRAM = (sys.executable, str(Path(__file__).with_name("served_program.py")))


class Served(Agent):
    """Its master and its worker, raw connections to it, and what its service noted."""

    def __init__(self, folder: Path, settings: dict[str, str]):
        super().__init__(folder, {"NOTES": str(folder / "notes"), **settings}, PROGRAM)

    @property
    def notes(self) -> list[str]:
        """One line each for what the service was told: `started PID`, `stopped PID`, …"""
        path = self.folder / "notes"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def worker(self) -> int:
        return int(self.get("/health").json()["pid"])

    def threads(self) -> list[str]:
        names: list[str] = self.get("/health").json()["threads"]
        return names

    def connect(self, request: bytes = b"") -> socket.socket:
        """A raw connection that sent `request`."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        connection.sendall(request)
        return connection

    def talk(self, request: bytes) -> bytes:
        """Send `request` and read until the server closes."""
        with self.connect(request) as connection:
            return read_all(connection)

    def wait_for_note(self, note: str) -> None:
        wait_until(lambda: any(line.startswith(note) for line in self.notes), 10, f"the note {note!r}")


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    received = b""
    while data := connection.recv(65536):
        received += data
    return received


@pytest.fixture
def make_served(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Makes servers, not started yet; keywords are settings."""
    made: list[Served] = []

    def make(**settings: str) -> Served:
        folder = tmp_path / f"served-{len(made)}"
        folder.mkdir()
        made.append(Served(folder, settings))
        return made[-1]

    yield make
    for served in made:
        served.end()


@pytest.fixture
def served(make_served: Callable[..., Served]) -> Served:
    """A running server."""
    served = make_served()
    served.start()
    return served
