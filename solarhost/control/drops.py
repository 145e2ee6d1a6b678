"""Says now and then what the outbox had to drop."""

import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)


class DropReport:
    """Logs the entries dropped since the last report, once in `interval_s` at most.

    Args:
        dropped: totals since the start, by kind.
    """

    def __init__(
        self,
        dropped: Callable[[], dict[str, int]],
        interval_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._dropped = dropped
        self._interval_s = interval_s
        self._clock = clock
        self._reported = dropped()
        self._next_at = clock()

    def tick(self) -> None:
        """Report if it is time and there is something."""
        now = self._clock()
        if now < self._next_at:
            return
        totals = self._dropped()
        news = {kind: total - self._reported[kind] for kind, total in totals.items()}
        if not any(news.values()):
            return
        self._reported = totals
        self._next_at = now + self._interval_s
        text = ", ".join(f"{count} {kind}" for kind, count in news.items() if count)
        logger.warning(
            "control: dropped from the queues: %s; control or the network to it is too slow, "
            "the log files are complete",
            text,
        )
