"""The host: the one place that knows all parts."""

import logging
import socket
import time
from collections.abc import Callable
from typing import Any

from solarhost import __version__
from solarhost.backends.huggingface import huggingface_backends
from solarhost.backends.llamacpp import LlamaCpp
from solarhost.backends.registry import Backends
from solarhost.control import payloads
from solarhost.control.link import ControlLink
from solarhost.errors import Unavailable
from solarhost.instances.service import Instances
from solarhost.jobs.service import JobService
from solarhost.logs.book import LogBook
from solarhost.modelstore.store import ModelStore
from solarhost.places import Places
from solarhost.problems import Problems
from solarhost.resources.service import Resources
from solarhost.settings import Settings
from solarhost.threads import PeriodicThread

logger = logging.getLogger(__name__)

Rest = Callable[[str, str, dict[str, Any] | None], tuple[int, object]]
FAILING_AFTER = 3  # a loop that failed so often in a row is a problem


class Host:
    """Builds every part from the settings; `start` brings them to life, `close` ends them in order.

    Some parts ask others that are built later; they get a callback that is not used before `start`.
    """

    instances: Instances
    jobs: JobService

    def __init__(self, settings: Settings):
        self.settings = settings
        self.problems = Problems()
        self._rest: Rest | None = None
        self.places = Places()
        self.link = ControlLink(
            settings,
            registration=self._registration,
            instances=lambda: self.instances.flat(),
            health=self._health_report,
            dispatch=self._dispatch,
            delivered=lambda event: self.jobs.delivered(event),
        )
        publish = self.link.publish
        self.logs = LogBook(
            folder=settings.log_dir,
            buffer_size=settings.log_buffer_size,
            retained=settings.retained_log_buffers,
            retention_s=settings.log_file_retention_s,
            file_max_bytes=settings.log_file_max_mb << 20,
            secrets=settings.secrets,
            publish=publish,
            problems=self.problems,
            exists=lambda instance_id: self.instances.exists(instance_id),
        )
        self.resources = Resources(settings, self.problems, jobs=lambda job_id: self.jobs.view(job_id))
        self.models = ModelStore(
            settings, publish, self.problems, in_use=lambda: self.instances.files_in_use()
        )
        self.jobs = JobService(
            settings,
            publish,
            self.problems,
            host_id=lambda: self.link.host_id,
            gpu_count=self.resources.gpu_count,
        )
        self.backends = Backends([LlamaCpp(settings.llama_server_path), *huggingface_backends(settings)])
        self.instances = Instances(
            settings,
            backends=self.backends,
            logs=self.logs,
            charges=self.resources.charges,
            resolve=self.models.resolve,
            publish=publish,
            problems=self.problems,
        )

    def connect_rest(self, rest: Rest) -> None:
        """Give commands over the control link the REST calls that they name."""
        self._rest = rest

    def start(self) -> None:
        """Start every part; living children of an earlier agent are adopted before this returns."""
        self.resources.start()
        self.models.start()
        self.instances.start()
        self.jobs.start()
        self.link.start()

    def close(self, deadline: float, *, detach: bool = False) -> None:
        """End every part by one `time.monotonic()` deadline; the link last, so that it tells of it.

        Args:
            detach: leave the model servers running, whatever `ON_SHUTDOWN` says.
        """
        started = time.monotonic()
        self.models.close(deadline)  # first, since requests wait for pulls
        self.jobs.close(deadline)
        self.instances.close(deadline, detach=detach)
        self.link.close(deadline)
        self.resources.close(deadline)
        self.logs.close(deadline)
        logger.info("stopped after %.1f s", time.monotonic() - started)

    @property
    def loops(self) -> list[PeriodicThread]:
        return [*self.instances.loops, self.resources.loop, self.models.loop, *self.jobs.loops]

    def open_problems(self) -> list[str]:
        """What is wrong right now, one sentence each."""
        return self.problems.current() + [
            f"{loop.name} failed {loop.consecutive_errors} times in a row; the agent's log says why"
            for loop in self.loops
            if loop.consecutive_errors >= FAILING_AFTER
        ]

    def health(self) -> dict[str, Any]:
        """The body of `GET /health`."""
        problems = self.open_problems()
        report: dict[str, Any] = {
            "status": "degraded" if problems else "healthy",
            "service": "solar-host",
            "version": __version__,
            "disk": self.resources.disk(),
            "memory": self.resources.health_memory(),
            "control": self.link.status(),
        }
        return report | {"problems": problems} if problems else report

    def _dispatch(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, object]:
        if self._rest is None:
            raise Unavailable("the agent is still starting")
        return self._rest(method, path, body)

    def _registration(self) -> dict[str, Any]:
        """What solar-control gets when it knows this host."""
        return payloads.registration(
            self.settings.host_name or socket.gethostname(),
            self.instances.flat(),
            self.resources.gpu_type,
            self.backends.types,
            __version__,
        )

    def _health_report(self) -> dict[str, Any]:
        """The `data` of `host_health`."""
        try:
            memory: dict[str, Any] | None = self.resources.memory()
        except Unavailable:
            memory = None
        return payloads.health_data(
            self.instances.flat(),
            self.resources.gpu_type,
            self.backends.types,
            __version__,
            memory=memory,
            disk=self.resources.disk(),
            resources=self.resources.snapshot(),
        )
