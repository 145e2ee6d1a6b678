"""How the agent's own log looks: one line an event, with the thread's name, and no secret in it."""

import logging
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from gunicorn.glogging import Logger

# No query: it may hold a key.
ACCESS_FORMAT = '%(h)s "%(m)s %(U)s" %(s)s, %(B)s bytes in %(M)s ms'
FORMAT = "%(asctime)s %(levelname)s [%(threadName)s] %(name)s: %(message)s"


class RedactingFormatter(logging.Formatter):
    """UTC times; secrets become `***` wherever they stand, tracebacks and URLs included."""

    converter = time.gmtime  # type: ignore[assignment]
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self, secrets: Sequence[str]):
        super().__init__(FORMAT)
        forms = {form for secret in secrets for form in (secret, quote(secret, safe=""))}
        self._forms = sorted(forms, key=len, reverse=True)

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        for form in self._forms:
            text = text.replace(form, "***")
        return text


class AccessIfAsked(Logger):  # type: ignore[misc]
    """gunicorn's logger, which with a `logconfig_dict` would log each request."""

    def access(self, resp: Any, req: Any, environ: Any, request_time: Any) -> None:
        if self.cfg.accesslog:
            super().access(resp, req, environ, request_time)


def logging_config(level: str, secrets: Sequence[str]) -> dict[str, Any]:
    """For `logging.config.dictConfig`: everything to stderr, gunicorn's own chatter from WARNING up."""
    formatter = RedactingFormatter(secrets)
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
