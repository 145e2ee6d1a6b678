"""Reading a step's log file: its end, and all of it while it grows."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from solarhost.jobs import logfile
from solarhost.jobs.logfile import LogExtent, LogPart, StepLogCursor, read_tail

LINES = [f"line {number}" for number in range(1, 1001)]


class Growing:
    """A file that is written in pieces, and what is said of it."""

    def __init__(self, folder: Path):
        self.path = folder / "step.log"
        self.extent = LogExtent()

    def write(self, *lines: str) -> None:
        with self.path.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)
        self.extent = LogExtent(self.path.stat().st_size, self.extent.lines + len(lines))

    def end(self) -> None:
        self.extent = LogExtent(self.extent.size, self.extent.lines, is_final=True)

    def cursor(self, since: int = 0) -> StepLogCursor:
        return StepLogCursor(self.path, lambda: self.extent, since=since)


@pytest.fixture
def log(tmp_path):
    return Growing(tmp_path)


def rest(cursor: StepLogCursor) -> list[tuple[int, str]]:
    """What it gives until it waits or ends, numbered."""
    found = []
    while (part := cursor.next(0.0)) is not None:
        found += list(enumerate(part.lines, part.first_seq))
    return found


def test_a_reader_gets_each_line_once_and_then_the_end(log):
    cursor = log.cursor()
    assert cursor.next(0.0) is None  # there is no file yet
    log.write("a", "b")
    assert rest(cursor) == [(1, "a"), (2, "b")]
    log.write("c")
    with log.path.open("a") as file:
        file.write("half a li")  # not yet said to be there
    assert rest(cursor) == [(3, "c")]
    assert not cursor.closed
    log.end()
    assert rest(cursor) == []
    assert cursor.closed
    cursor.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(since=st.integers(0, 1100), tail=st.integers(0, 1100), block=st.integers(16, 20_000))
def test_since_and_tail_choose_the_lines_whatever_the_blocks_are(tmp_path, monkeypatch, since, tail, block):
    log = Growing(tmp_path)
    log.path.unlink(missing_ok=True)
    log.write(*LINES)
    log.end()
    monkeypatch.setattr(logfile, "BLOCK", block)
    numbered = list(enumerate(LINES, 1))
    cursor = log.cursor(since)
    assert rest(cursor) == numbered[since:]
    cursor.close()
    part = read_tail(log.path, log.extent, tail=tail, since=since)
    assert list(enumerate(part.lines, part.first_seq)) == numbered[max(since, len(LINES) - tail) :]


def test_a_tail_of_very_long_lines_holds_whole_lines_only(log):
    log.write(*(str(number % 10) * 60_000 for number in range(300)))
    part = read_tail(log.path, log.extent, tail=300, since=0)
    assert len(part.lines) > 100
    assert all(len(line) == 60_000 for line in part.lines)
    assert part.first_seq == 300 - len(part.lines) + 1


def test_bytes_that_are_no_text_do_no_harm(log):
    log.path.write_bytes(b"a\xff\nb\n")
    log.extent = LogExtent(5, 2, is_final=True)
    cursor = log.cursor()
    assert cursor.next(0.0) == LogPart(1, ["a\ufffd", "b"])
    cursor.close()


def test_a_file_that_somebody_cut_ends_the_reading(log):
    log.path.write_bytes(b"")
    log.extent = LogExtent(100, 3)
    cursor = log.cursor()
    assert cursor.next(0.0) is None
    assert cursor.closed
    cursor.close()
