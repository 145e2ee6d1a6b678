"""Reads `/metrics` of the running servers."""

import re
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from solarhost.backends.base import Usage
from solarhost.instances.ports import reachable_address
from solarhost.instances.run import Run
from solarhost.instances.status import Status
from solarhost.instances.supervisor import Supervisor

TIMEOUT_S = 1.0
PATIENCE = 5  # a server that did not answer in time is left alone for so many rounds
MAX_BYTES = 1 << 20

_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d{1,18})(?!\d)", re.IGNORECASE)


class NoAnswer(Exception):
    """The server closed the connection, was too slow, or spoke something else."""


class Line:
    """A kept connection to one server, asked with bytes made once.

    Fifty idle servers are asked 25 times a second, and a general HTTP client spends three times as
    long on headers that nobody reads.
    """

    def __init__(self, host: str, port: int, key: str):
        address = reachable_address(host)
        request = f"GET /metrics HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\n\r\n"
        self._request = request.encode()
        self._socket = socket.create_connection((address, port), TIMEOUT_S)

    def ask(self) -> bytes:
        """The body of a 200.

        Raises:
            OSError, NoAnswer: there is none within `TIMEOUT_S`; the line is of no more use.
        """
        deadline = time.monotonic() + TIMEOUT_S
        self._socket.sendall(self._request)
        data = b""
        while True:
            head, found, body = data.partition(b"\r\n\r\n")
            length = _LENGTH.search(head) if found else None
            if found and (not head.startswith(b"HTTP/1.1 200") or length is None):
                raise NoAnswer
            if length and len(body) >= int(length[1]):
                return body
            if len(data) > MAX_BYTES or time.monotonic() > deadline:
                raise NoAnswer
            more = self._socket.recv(65536)
            if not more:
                raise NoAnswer
            data += more

    def close(self) -> None:
        self._socket.close()


@dataclass(slots=True)
class _Asked:
    """What is kept of one server between rounds."""

    line: Line | None = None
    skip: int = 0
    text: bytes = b""
    usage: Usage | None = None  # what `text` says


class MetricsPoll:
    """Asks all running servers, one after another. Used by one thread."""

    def __init__(self, key: str):
        self._key = key
        self._asked: dict[int, _Asked] = {}  # by pid

    def poll(self, supervisors: list[Supervisor]) -> None:
        """One round: hand each reading to its instance."""
        running = {}
        for supervisor in supervisors:
            run = supervisor.run
            if run is not None and not run.exited and supervisor.status is Status.RUNNING:
                running[run.process.pid] = (supervisor, run)
        for pid in self._asked.keys() - running.keys():
            self._hang_up(self._asked.pop(pid))
        for pid, (supervisor, run) in running.items():
            asked = self._asked.setdefault(pid, _Asked())
            if asked.skip:
                asked.skip -= 1
                continue
            usage = self._read(asked, supervisor, run)
            if usage is None:
                asked.skip = PATIENCE
                continue
            run.usage = (datetime.now(UTC), usage)
            supervisor.on_usage(run, usage)

    def _read(self, asked: _Asked, supervisor: Supervisor, run: Run) -> Usage | None:
        """None when there is no answer; a connection that was closed meanwhile is opened again."""
        for _ in range(2):
            fresh = asked.line is None
            try:
                asked.line = asked.line or Line(supervisor.record.bind_host, run.port, self._key)
                text = asked.line.ask()
            except (OSError, NoAnswer):
                self._hang_up(asked)
                if fresh:
                    return None
                continue
            if asked.usage is None or text != asked.text:  # an idle server says the same again
                asked.text, asked.usage = text, supervisor.backend.usage(text.decode("utf-8", "replace"))
            return asked.usage
        return None

    def _hang_up(self, asked: _Asked) -> None:
        if asked.line is not None:
            with suppress(OSError):
                asked.line.close()
            asked.line = None

    def close(self) -> None:
        for asked in self._asked.values():
            self._hang_up(asked)
        self._asked.clear()
