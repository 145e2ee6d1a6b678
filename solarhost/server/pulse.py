"""The pulse that the service manager's watchdog hears: it beats for as long as the agent answers."""

import http.client
import logging
import time
from typing import Any

from solarhost.server.notify import Notifier
from solarhost.threads import PeriodicThread

logger = logging.getLogger(__name__)

BEATS = 3  # in each interval that the manager allows, so that one that is late does no harm


class Pulse(PeriodicThread):
    """Asks the agent for `/health` as any caller would, and gives a sign of life for each answer.

    The question goes through the listening socket, the poller, a request thread and the application, so
    one of them that hangs silences it. What a restart would not mend (no disk, no Docker) is in the body
    of the answer and does not.
    """

    def __init__(self, address: tuple[Any, ...], notifier: Notifier):
        """`address`: of the listening socket, as the socket tells it."""
        self._beat_s = (notifier.watchdog_s or 0) / BEATS
        super().__init__("watchdog", self._beat_s, self._beat)
        self._host, self._port = address[:2]
        self._notifier = notifier

    def start(self) -> None:
        """Begin, if somebody listens."""
        if self._notifier.watchdog_s:
            super().start()

    def _beat(self) -> None:
        began = time.monotonic()
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._beat_s)
        try:
            connection.request("GET", "/health", headers={"Connection": "close"})
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            took_s = time.monotonic() - began
            logger.warning("the agent did not answer its own GET /health (%.1f s): %r", took_s, error)
        else:
            if status == http.client.OK:
                self._notifier.alive()
            else:
                logger.warning("the agent answered its own GET /health with %d", status)
        finally:
            connection.close()
