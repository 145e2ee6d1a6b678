"""The judges of `make chaos` see what they are there to see."""

import time
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest

from contrib.chaos.findings import Findings
from contrib.chaos.lines import Lines
from contrib.chaos.memory import Promises
from contrib.chaos.script import script
from contrib.chaos.truth import Doubts
from contrib.chaos.weather import AFTERMATH_S, DISK, Weather


@pytest.fixture
def findings() -> Findings:
    return Findings("again")


def lines_of(findings: Findings, *messages: Any) -> list[str]:
    """The kinds of findings after these messages: `(seq, line)`, or the next number after a gap."""
    world: Any = SimpleNamespace(weather=Weather())
    lines = Lines("i", world, findings)
    for message in messages:
        if isinstance(message, int):
            lines.message({"dropped": 1, "next_seq": message})
        else:
            lines.message({"seq": message[0], "line": message[1]})
    return [finding.kind for finding in findings.found]


def test_a_seed_repeats_the_steps_and_their_choices() -> None:
    deck = {"start": 3, "stop": 2, "kill": 1}
    runs = [
        [(step.what, step.pause_s, step.chance.random()) for step in islice(script(seed, deck), 60)]
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1] != runs[2]
    assert sorted(what for what, *_ in runs[0][:6]) == ["kill", "start", "start", "start", "stop", "stop"]


def test_a_promise_is_owed_until_its_deletion_is_asked_for() -> None:
    promises = Promises()
    asked = time.monotonic()
    promises.make("a", asked)
    assert promises.owed(asked) == set()  # the list may be older than the promise
    assert promises.owed(time.monotonic()) == {"a"}
    with promises.deletion("a") as deletion:
        assert promises.owed(time.monotonic()) == set()
        deletion.refused()
    assert promises.owed(time.monotonic()) == {"a"}
    with promises.deletion("a") as deletion:
        deletion.done()
    assert promises.owed(time.monotonic()) == set()
    assert promises.gone(time.monotonic()) == {"a"}


def test_after_a_deletion_without_an_answer_nothing_is_sure() -> None:
    promises = Promises()
    promises.make("a", time.monotonic())
    with promises.deletion("a"):
        pass
    assert promises.owed(time.monotonic()) == promises.gone(time.monotonic()) == set()


@pytest.mark.parametrize(
    ("messages", "kinds"),
    [
        ([(0, "fake server starting"), (1, "chatter 0"), (2, "chatter 1")], []),
        ([(0, "chatter 0"), (1, "chatter 1"), 5, (5, "chatter 5")], []),
        ([(0, "chatter 7"), (1, "fake server starting"), (2, "chatter 0")], []),
        ([(0, "chatter 0"), (2, "chatter 2")], ["order of a log"]),
        ([(0, "chatter 0"), (1, "chatter 2")], ["count of a log"]),
        ([(0, "chatter 0"), (1, "chatter 0")], ["count of a log"]),
        ([(0, "other"), (0, "chatter 1")], ["order of a log", "line of a number"]),
    ],
)
def test_lines_are_judged(findings: Findings, messages: list[Any], kinds: list[str]) -> None:
    assert lines_of(findings, *messages) == kinds


def test_a_full_disk_excuses_lines_that_are_read_long_after_they_were_printed(findings: Findings) -> None:
    weather = Weather()
    world: Any = SimpleNamespace(weather=weather)
    lines = Lines("i", world, findings)
    with weather.spell(DISK):
        pass
    printed = ["fake server starting", "chatter 25", "chatter 2"]  # the disk filled up within "chatter 26"
    for seq, line in enumerate(printed):
        lines.message({"seq": seq, "line": line})
    assert findings.found == []


def test_a_full_disk_excuses_no_line_of_a_later_run(
    findings: Findings, monkeypatch: pytest.MonkeyPatch
) -> None:
    weather = Weather()
    world: Any = SimpleNamespace(weather=weather)
    lines = Lines("i", world, findings)
    with weather.spell(DISK):
        pass
    later = time.monotonic() + 2 * AFTERMATH_S
    monkeypatch.setattr(time, "monotonic", lambda: later)
    lines.silence()
    for seq, line in enumerate(["fake server starting", "chatter 25", "chatter 2"]):
        lines.message({"seq": seq, "line": line})
    assert [finding.kind for finding in findings.found] == ["count of a log"]


def test_a_doubt_that_lasts_is_a_finding_once(findings: Findings) -> None:
    doubts = Doubts(findings)
    late = {("stuck", "a"): (0.0, "an end", "none")}
    doubts.update({("stuck", "a"): (60.0, "an end", "none")})
    assert findings.found == []
    doubts.update(late)
    doubts.update(late)
    assert [(finding.kind, finding.expected) for finding in findings.found] == [("stuck", "an end")]


def test_weather_is_remembered() -> None:
    weather = Weather()
    before = time.monotonic()
    with weather.spell(DISK):
        assert weather.since(time.monotonic()) == {DISK}
    assert weather.since(before) == {DISK}
    assert weather.since(time.monotonic()) == set()
