"""Spans and moments, as they are written on the command line."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhd]?)", re.ASCII)

Since = int | datetime


class Span(click.ParamType[float]):
    """Seconds, or a number with s, m, h or d."""

    name = "SPAN"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = SPAN.fullmatch(value)
        if match is None:
            self.fail(f"{value!r} is not a span such as 90s, 30m, 2h or 1d", param, ctx)
        return float(match[1]) * UNITS[match[2] or "s"]


class Moment(click.ParamType[Since]):
    """The number of a log line, a span before now, or an ISO 8601 time."""

    name = "SEQ|SPAN|TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Since:
        if re.fullmatch(r"\d{1,18}", value, re.ASCII):
            return int(value)
        try:
            if match := SPAN.fullmatch(value):
                return datetime.now(UTC) - timedelta(seconds=float(match[1]) * UNITS[match[2] or "s"])
            return datetime.fromisoformat(value).astimezone(UTC)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is neither a number, nor a span such as 10m, nor a time", param, ctx)
