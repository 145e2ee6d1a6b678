"""Printing: tables for people, JSON for programs. What comes from outside never drives the terminal."""

import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

STYLES = {
    "running": "green",
    "completed": "green",
    "failed": "red",
    "starting": "yellow",
    "stopping": "yellow",
    "pending": "yellow",
    "stopped": "dim",
    "cancelled": "dim",
}


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_json_line(value: object) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))


def plain(value: object) -> str:
    """Text in which control characters (but tabs) can be seen and do nothing."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(
        letter
        if letter == "\t" or unicodedata.category(letter) not in ("Cc", "Cf", "Cs")
        else "\N{REPLACEMENT CHARACTER}"
        for letter in text
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table without lines; cells that are a known status get its colour."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(cell(value) for value in row))
    return made


def cell(value: object) -> Text:
    if isinstance(value, list | tuple):
        value = ", ".join(str(item) for item in value)
    elif isinstance(value, bool):
        value = "yes" if value else "no"
    text = "-" if value is None or value == "" else plain(value)
    return Text(text, style=STYLES.get(text, ""))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    if rows:
        console().print(table(columns, rows))
    else:
        click.echo(empty)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Names and values below each other; absent values are left out."""
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in fields:
        if value not in (None, "", [], {}):
            made.add_row(name, cell(value))
    console().print(made)


def console(*, stderr: bool = False) -> Console:
    """Wide when nobody looks: a pipe shall not get broken lines."""
    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=False)
    if not made.is_terminal:
        made.width = 1000
    return made


def age(moment: str | None) -> str | None:
    """How long ago, in one unit."""
    return None if moment is None else _span(-_seconds_until(moment))


def until(moment: str | None) -> str | None:
    """In how long, in one unit."""
    return None if moment is None else f"in {_span(_seconds_until(moment))}"


def _seconds_until(moment: str) -> float:
    return (datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds()


def _span(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def size(count: float | None) -> str | None:
    """Bytes in binary units."""
    if count is None:
        return None
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def tell_warnings(answer: Mapping[str, Any]) -> None:
    """On stderr, what the agent warns of with an answer."""
    for warning in answer.get("warnings", ()):
        click.echo(f"Warning: {warning}", err=True)
