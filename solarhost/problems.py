"""What is wrong right now, for `/health`."""

import logging
from threading import Lock

logger = logging.getLogger(__name__)


class Problems:
    """Open problems by key, each one sentence. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards _open
        self._open: dict[str, str] = {}

    def report(self, key: str, sentence: str) -> None:
        """Note a problem; logged once for each new wording."""
        with self._lock:
            news = self._open.get(key) != sentence
            self._open[key] = sentence
        if news:
            logger.warning("problem %s: %s", key, sentence)

    def clear(self, key: str) -> None:
        """It is gone."""
        with self._lock:
            known = self._open.pop(key, None)
        if known:
            logger.info("problem %s is over", key)

    def current(self) -> list[str]:
        """The sentences, oldest first."""
        with self._lock:
            return list(self._open.values())
