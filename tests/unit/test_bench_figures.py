"""What `make bench` collects, compares and shows."""

import os
import subprocess
import sys

import pytest

from contrib.bench import results, run, table
from contrib.bench.figures import FIGURES, Figure, collected
from contrib.bench.picture import draw, share_of_limit
from contrib.bench.results import Outcome
from contrib.setup.steps import ROOT


def figure(name: str = "start", value: float = 2.0, **fields) -> Figure:
    return Figure(**{"name": name, "value": value, "unit": "ms", "load": 0.5, **fields})


@pytest.mark.parametrize(
    ("limits", "is_met", "share"),
    [
        ({"at_most": 4}, True, 0.5),
        ({"at_most": 2}, True, 1.0),
        ({"at_most": 1}, False, 2.0),
        ({"at_most": 0}, False, float("inf")),
        ({"at_least": 1}, True, 0.5),
        ({"at_least": 4}, False, 2.0),
    ],
)
def test_a_figure_knows_whether_its_limit_is_met(limits, is_met, share):
    assert figure(**limits).is_met is is_met
    assert share_of_limit(figure(**limits)) == share


def test_a_figure_without_a_limit_is_neither_met_nor_missed():
    assert figure().is_met is None
    assert str(figure(note="once")) == "start 2 ms: once"
    assert str(figure(at_most=1)) == "start 2 ms (at most 1: MISSED)"


def test_a_script_hands_over_each_figure_when_it_is_known(tmp_path):
    script = """
from contrib.bench.figures import Figure, show
def measure():
    yield Figure(name="first", value=1, unit="ms", points=((1, 2.0), (10, 3.0)))
    raise RuntimeError("the second failed")
show(measure)
"""
    sink = tmp_path / "figures"
    environment = {**os.environ, FIGURES: str(sink), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout == "first 1 ms\n"
    with sink.open("a") as file:
        file.write('{"name": "half')
    assert [(found.name, found.points) for found in collected(sink)] == [("first", ((1, 2.0), (10, 3.0)))]


def test_outcomes_survive_being_kept(tmp_path):
    outcomes = [
        Outcome(bench="a", figures=(figure(points=((1, 1.0),)),), before={"start": 4.0}),
        Outcome(bench="b", failure="no disk"),
    ]
    results.save(outcomes, tmp_path / "kept" / "figures.json")
    assert results.load(tmp_path / "kept" / "figures.json") == outcomes


def test_new_outcomes_take_the_place_of_the_kept_ones():
    kept = [Outcome(bench="a", at="old"), Outcome(bench="gone"), Outcome(bench="b", at="old")]
    merged = results.merged(kept, [Outcome(bench="b", at="new")], ["b", "a", "never"])
    assert [(outcome.bench, outcome.at) for outcome in merged] == [("b", "new"), ("a", "old")]


def test_a_change_is_told_against_the_same_kind_of_machine_only():
    new = Outcome(bench="a", figures=(figure(value=3.0),), machine="this")
    earlier = Outcome(bench="a", figures=(figure(value=2.0),), machine="this")
    assert new.compared(earlier).change(new.figures[0]) == pytest.approx(0.5)
    other = Outcome(bench="a", figures=(figure(value=2.0),), machine="that")
    assert new.compared(other).change(new.figures[0]) is None
    assert new.compared(None).change(new.figures[0]) is None


def test_a_failed_bench_is_a_row_beside_its_figures():
    failed = Outcome(bench="a", figures=(figure(at_most=4),), failure="not done after 9 s")
    assert [(row.cells[0], row.is_met) for row in table.rows(failed)] == [("start", True), ("a", False)]
    assert "| `a` | failed |  | no |  |  |  | not done after 9 s |" in table.markdown([failed])


def test_the_page_shows_the_kept_figures():
    """`python -m contrib.bench.table` writes it anew."""
    assert table.section(table.PAGE.read_text()) == table.markdown(results.load())


def test_every_kept_figure_belongs_to_a_bench_that_there_is():
    assert [kept.bench for kept in results.load() if kept.bench not in run.BENCHES] == []
    assert [name for name in run.BENCHES if not (ROOT / f"contrib/bench/{name}.py").exists()] == []


def test_pictures_are_drawn(tmp_path):
    grown = figure("growth_logs_read", points=((1.0, 2.0), (10.0, 5.0)))
    compared = figure("rate", unit="of the peer's", at_least=1)
    outcomes = [
        Outcome(bench="a", figures=(figure(at_most=0), figure("b", at_least=4), compared)),
        Outcome(bench="growth_logs", figures=(grown,)),
    ]
    draw(outcomes, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"figures.png", "growth_logs.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())
