"""Log lines of `key=value` pairs, one line each, for people and for the program that runs this server."""

import json
import logging
import re
import sys
from datetime import UTC, datetime

_PLAIN = re.compile(r"[^\s\"=\\]+")

logger = logging.getLogger("hf_server")


def event(name: str, **values: object) -> None:
    """Log one event; None values are left out, floats are seconds or rates."""
    logger.info("%s", pairs(event=name, **values))


def failure(name: str, **values: object) -> None:
    """Log one event that somebody should look at."""
    logger.error("%s", pairs(event=name, **values))


def pairs(**values: object) -> str:
    """`key=value` pairs; a value with blanks, quotes or line ends is written as a JSON string."""
    return " ".join(f"{key}={_value(value)}" for key, value in values.items() if value is not None)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = f"{value:.4f}" if isinstance(value, float) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        message = record.getMessage()
        if record.name != logger.name:  # a library's line
            message = pairs(event="log", logger=record.name, message=message)
        line = f"time={at} level={record.levelname.lower()} {message}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


def configure() -> None:
    """Send everything to stderr, ours from INFO up and the libraries' from WARNING up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logger.setLevel(logging.INFO)
