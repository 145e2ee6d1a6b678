"""Drives `control_server.py` from a test: start, kill, freeze, give orders, wait for what arrived."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parent.parent
Record = dict[str, Any]
T = TypeVar("T")


def wait_for(look: Callable[[], T | None], what: str, timeout_s: float = 20.0) -> T:
    """Look until there is something true; return it."""
    give_up_at = time.monotonic() + timeout_s
    while not (found := look()):
        if time.monotonic() > give_up_at:
            raise AssertionError(f"{what}: not within {timeout_s} s")
        time.sleep(0.01)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ControlProcess:
    """One record file and one port; the server behind them comes and goes."""

    def __init__(self, folder: Path, known_keys: tuple[str, ...], options: tuple[str, ...] = ()):
        self.port = free_port()
        self._record = folder / "control.jsonl"
        self._log = folder / "control.log"
        self._known_keys = known_keys
        self._arguments = ["--port", str(self.port), "--record", str(self._record), *options]
        self._process: subprocess.Popen[bytes] | None = None
        self._read = 0  # bytes of the record file
        self._records: list[Record] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> "ControlProcess":
        started = len(self.records("listening"))
        keys = [argument for key in self._known_keys for argument in ("--known-key", key)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.control_server", *self._arguments, *keys],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        wait_for(lambda: len(self.records("listening")) > started, "control listens", 60.0)
        return self

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def reset(self, known_keys: tuple[str, ...]) -> "ControlProcess":
        """As if it had just started."""
        self._known_keys = known_keys
        self.do("reset", known_keys=list(known_keys))
        self._records.clear()
        return self

    def kill(self) -> None:
        """SIGKILL, and reap it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdin is not None:
                with suppress(BrokenPipeError):
                    self._process.stdin.close()
            self._process = None

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def do(self, what: str, **arguments: Any) -> None:
        """Give an order and wait until it was obeyed."""
        assert self._process is not None and self._process.stdin is not None
        obeyed = len(self.records("obeyed"))
        self._process.stdin.write(json.dumps({"do": what, **arguments}).encode() + b"\n")
        self._process.stdin.flush()
        wait_for(lambda: len(self.records("obeyed")) > obeyed, f"control obeys {what}")

    def records(self, kind: str | None = None) -> list[Record]:
        """What happened so far, over all lives of the server."""
        if self._record.exists():
            with self._record.open("rb") as file:
                file.seek(self._read)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._read += len(line)
                    self._records.append(json.loads(line))
        return [record for record in self._records if kind in (None, record["kind"])]

    def events(self, *names: str) -> list[Record]:
        """Events that arrived, oldest first: of these names, or all."""
        return [r for r in self.records("event") if not names or r["event"] in names]

    def invalid(self) -> list[Record]:
        return [record for record in self.events() if record["errors"]]

    def sessions(self) -> list[str]:
        """Names of the hosts that are connected now."""
        self.do("sessions")
        hosts: list[str] = self.records("sessions")[-1]["hosts"]
        return hosts

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command to the host; return its acknowledgement."""
        self.do("command", **command)
        return wait_for(lambda: self.answer(command["id"]), f"an answer to {command}")

    def answer(self, command_id: str) -> dict[str, Any] | None:
        answers = (record["answer"] for record in self.records("answer"))
        return next((answer for answer in answers if answer["id"] == command_id), None)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
