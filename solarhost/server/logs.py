"""How the agent's own log looks: one line an event, with the thread's name, and no secret in it."""

import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from gunicorn.glogging import Logger

# No query: it may hold a key.
ACCESS_FORMAT = '%(h)s "%(m)s %(U)s" %(s)s, %(B)s bytes in %(M)s ms'
FORMAT = "%(asctime)s %(levelname)s [%(threadName)s] %(name)s: %(message)s"
JOURNAL_FORMAT = "[%(threadName)s] %(name)s: %(message)s"  # time and level are fields of its own
# As in sd-daemon(3).
PRIORITIES = {logging.CRITICAL: 2, logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6, logging.DEBUG: 7}


class RedactingFormatter(logging.Formatter):
    """UTC times; secrets become `***` wherever they stand, tracebacks and URLs included.

    For systemd's journal each line carries its level, so that `journalctl --priority` finds it.
    """

    converter = time.gmtime  # type: ignore[assignment]
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self, secrets: Sequence[str], *, for_journal: bool):
        super().__init__(JOURNAL_FORMAT if for_journal else FORMAT)
        self._for_journal = for_journal
        forms = {form for secret in secrets for form in (secret, quote(secret, safe=""))}
        self._forms = sorted(forms, key=len, reverse=True)

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        for form in self._forms:
            text = text.replace(form, "***")
        if self._for_journal:
            mark = f"<{PRIORITIES.get(record.levelno, PRIORITIES[logging.INFO])}>"
            text = "\n".join(mark + line for line in text.splitlines())
        return text


class AccessIfAsked(Logger):  # type: ignore[misc]
    """gunicorn's logger, which with a `logconfig_dict` would log each request."""

    def access(self, resp: Any, req: Any, environ: Any, request_time: Any) -> None:
        if self.cfg.accesslog:
            super().access(resp, req, environ, request_time)


def logging_config(level: str, secrets: Sequence[str]) -> dict[str, Any]:
    """For `logging.config.dictConfig`: everything to stderr, gunicorn's own chatter from WARNING up."""
    formatter = RedactingFormatter(secrets, for_journal=_stderr_is_journal())
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": lambda: formatter}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"level": level, "handlers": ["stderr"]},
        "loggers": {
            "gunicorn.error": {"level": "DEBUG" if level == "DEBUG" else "WARNING", "propagate": True},
            "gunicorn.access": {"level": "INFO", "propagate": True},
            "urllib3": {"level": "WARNING"},
        },
    }


def _stderr_is_journal() -> bool:
    """As systemd.exec(5) says under JOURNAL_STREAM; the variable alone is inherited by programs elsewhere."""
    stream = os.environ.get("JOURNAL_STREAM")
    if not stream:
        return False
    file = os.fstat(sys.stderr.fileno())
    return stream == f"{file.st_dev}:{file.st_ino}"
