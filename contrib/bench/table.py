"""The figures for people: a table in the terminal, the same in `docs/benchmarks.md`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from contrib.bench import results
from contrib.bench.figures import Figure, number
from contrib.bench.results import Outcome
from contrib.setup.steps import ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"
HEAD = ("figure", "measured", "limit", "met", "before", "change", "load")


@dataclass(frozen=True)
class Row:
    """One line of the table, in words."""

    cells: tuple[str, ...]  # as HEAD
    note: str
    is_met: bool | None


def rows(outcome: Outcome) -> Iterator[Row]:
    """A bench's figures; last, if it failed, why."""
    for figure in outcome.figures:
        yield Row(_cells(outcome, figure), figure.note, figure.is_met)
    if outcome.failure:
        yield Row((outcome.bench, "failed", "", "no", "", "", ""), outcome.failure, False)


def _cells(outcome: Outcome, figure: Figure) -> tuple[str, ...]:
    before, change = outcome.before.get(figure.name), outcome.change(figure)
    return (
        figure.name,
        f"{number(figure.value)} {figure.unit}",
        figure.limit,
        {None: "", True: "yes", False: "no"}[figure.is_met],
        "" if before is None else number(before),
        "" if change is None else f"{100 * change:+.0f}%",
        f"{figure.load:g}",
    )


def print_table(outcomes: Iterable[Outcome]) -> None:
    table = Table(*HEAD, "how", show_lines=False)
    for outcome in outcomes:
        for row in rows(outcome):
            table.add_row(*row.cells, row.note, style="red" if row.is_met is False else None)
        table.add_section()
    console = Console()
    if not console.is_terminal:
        console.width = 200
    console.print(table)


def markdown(outcomes: Iterable[Outcome]) -> str:
    """What stands on the page between its marks; outcomes measured alike share a line about where."""
    lines: list[str] = []
    where = ""
    for outcome in outcomes:
        measured = _where(outcome)
        if measured != where:
            where = measured
            lines += ["", f"{where}:", "", _line((*HEAD, "how")), _line(["---"] * (len(HEAD) + 1))]
        lines += [_line((f"`{row.cells[0]}`", *row.cells[1:], row.note)) for row in rows(outcome)]
    return "".join(f"{line}\n" for line in lines)


def _where(outcome: Outcome) -> str:
    peer = "with the peer" if outcome.peer else "without the peer"
    return f"At {outcome.commit}, {outcome.at[:10]}, {outcome.machine}, {peer}"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def section(page: str) -> str:
    """The part of the page that is generated."""
    return page.partition(BEGIN)[2].partition(END)[0]


def update_page() -> None:
    """Put the kept figures into the page."""
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{markdown(results.load())}{END}{after}")


if __name__ == "__main__":
    update_page()
