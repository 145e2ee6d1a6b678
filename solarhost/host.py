"""The host: the one place that knows all parts."""

import logging
import time
from typing import Any

from solarhost import __version__
from solarhost.backends.llamacpp import LlamaCpp
from solarhost.backends.registry import Backends
from solarhost.events import Event
from solarhost.instances.service import Instances
from solarhost.logs.book import LogBook
from solarhost.modelstore.store import ModelStore
from solarhost.places import Places
from solarhost.problems import Problems
from solarhost.resources.service import Resources
from solarhost.settings import Settings
from solarhost.threads import PeriodicThread

logger = logging.getLogger(__name__)

FAILING_AFTER = 3  # a loop that failed so often in a row is a problem


class Host:
    """Builds every part from the settings; `start` brings them to life, `close` ends them in order.

    Some parts ask others that are built later; they get a callback that is not used before `start`.
    """

    instances: Instances

    def __init__(self, settings: Settings):
        self.settings = settings
        self.problems = Problems()
        self.places = Places(settings.threads)
        publish = _to_nobody
        self.logs = LogBook(
            folder=settings.log_dir,
            buffer_size=settings.log_buffer_size,
            retained=settings.retained_log_buffers,
            retention_s=settings.log_file_retention_s,
            file_max_bytes=settings.log_file_max_mb << 20,
            secrets=settings.secrets,
            publish=publish,
            problems=self.problems,
        )
        self.resources = Resources(settings, self.problems, jobs=lambda _: None)
        self.models = ModelStore(
            settings, publish, self.problems, in_use=lambda: self.instances.files_in_use()
        )
        self.backends = Backends([LlamaCpp(settings.llama_server_path)])
        self.instances = Instances(
            settings,
            backends=self.backends,
            logs=self.logs,
            charges=self.resources.charges,
            resolve=self.models.resolve,
            publish=publish,
            problems=self.problems,
        )

    def start(self) -> None:
        """Start every part; living children of an earlier agent are adopted before this returns."""
        self.resources.start()
        self.instances.start()

    def close(self, deadline: float, *, detach: bool = False) -> None:
        """End every part by one `time.monotonic()` deadline; the link last, so that it tells of it.

        Args:
            detach: leave the model servers running, whatever `ON_SHUTDOWN` says.
        """
        started = time.monotonic()
        self.instances.close(deadline, detach=detach)
        self.resources.close(deadline)
        self.logs.close(deadline)
        logger.info("stopped after %.1f s", time.monotonic() - started)

    @property
    def loops(self) -> list[PeriodicThread]:
        return self.instances.loops

    def health(self) -> dict[str, Any]:
        """The body of `GET /health`."""
        problems = self.problems.current() + [
            f"{loop.name} failed {loop.consecutive_errors} times in a row; the agent's log says why"
            for loop in self.loops
            if loop.consecutive_errors >= FAILING_AFTER
        ]
        report: dict[str, Any] = {
            "status": "degraded" if problems else "healthy",
            "service": "solar-host",
            "version": __version__,
            "disk": self.resources.disk(),
            "memory": self.resources.health_memory(),
        }
        return report | {"problems": problems} if problems else report


def _to_nobody(_: Event) -> None:
    """There is no control link yet."""
