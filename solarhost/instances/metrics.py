"""Reads `/metrics` of the running servers."""

import http.client
import logging
from datetime import UTC, datetime

from solarhost.instances.ports import reachable_address
from solarhost.instances.run import Run
from solarhost.instances.status import Status
from solarhost.instances.supervisor import Supervisor

logger = logging.getLogger(__name__)

TIMEOUT_S = 1.0
PATIENCE = 5  # a server that did not answer in time is left alone for so many rounds
MAX_BYTES = 1 << 20


class MetricsPoll:
    """Keeps one connection to each running server. Used by one thread."""

    def __init__(self, key: str):
        self._headers = {"Authorization": f"Bearer {key}"}
        self._connections: dict[int, http.client.HTTPConnection] = {}  # by pid
        self._skip: dict[int, int] = {}

    def poll(self, supervisors: list[Supervisor]) -> None:
        """Ask each running one and hand it the reading."""
        alive = {}
        for supervisor in supervisors:
            run = supervisor.run
            if run is not None and not run.exited and supervisor.status is Status.RUNNING:
                alive[run.process.pid] = (supervisor, run)
        for pid in self._connections.keys() - alive.keys():
            self._connections.pop(pid).close()
        for pid, (supervisor, run) in alive.items():
            if self._skip.get(pid, 0) > 0:
                self._skip[pid] -= 1
                continue
            text = self._read(supervisor, run)
            if text is None:
                self._skip[pid] = PATIENCE
                continue
            self._skip.pop(pid, None)
            usage = supervisor.backend.usage(text)
            run.usage = (datetime.now(UTC), usage)
            supervisor.on_usage(run, usage)

    def _read(self, supervisor: Supervisor, run: Run) -> str | None:
        """The text, None when it can't be had; a connection that was closed meanwhile is opened again."""
        pid = run.process.pid
        for _ in range(2):
            connection = self._connections.get(pid)
            fresh = connection is None
            if connection is None:
                connection = http.client.HTTPConnection(
                    reachable_address(supervisor.record.bind_host), run.port, timeout=TIMEOUT_S
                )
                self._connections[pid] = connection
            try:
                connection.request("GET", "/metrics", headers=self._headers)
                answer = connection.getresponse()
                body = answer.read(MAX_BYTES)
                if answer.status == 200:
                    return body.decode("utf-8", "replace")
                return None
            except (OSError, http.client.HTTPException):
                self._connections.pop(pid).close()
                if fresh:
                    return None
        return None

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
