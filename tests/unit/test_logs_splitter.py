"""Bytes become the same lines however they arrive."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solarhost.logs.redaction import Redactor
from solarhost.logs.splitter import CONTINUES, LINE_LIMIT, LineSplitter

SECRET = "s3cr3t-key-0123456789"


def split(data: bytes, sizes=(1 << 30,), secrets=(SECRET,)) -> list[str]:
    """Lines of `data` when it arrives in pieces of these sizes, repeated."""
    splitter = LineSplitter(Redactor(secrets))
    lines: list[str] = []
    at = turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        lines += splitter.feed(data[at : at + size])
        at += size
        turn += 1
    return lines + splitter.flush()


def test_half_lines_are_held_until_they_are_complete():
    splitter = LineSplitter(Redactor(()))
    assert splitter.feed(b"one\ntw") == ["one"]
    assert splitter.held == 2
    assert splitter.feed(b"o\n") == ["two"]
    assert splitter.held == 0


def test_an_unfinished_last_line_comes_with_the_flush():
    assert split(b"one\ntwo") == ["one", "two"]


def test_empty_lines_and_windows_line_ends_are_lines():
    assert split(b"a\r\n\r\nb\n\n") == ["a", "", "b", ""]


def test_a_secret_is_replaced_also_where_it_lies_across_two_reads():
    data = f"key {SECRET} used\n".encode()
    for cut in range(1, len(data)):
        assert split(data, (cut, len(data))) == ["key *** used"]


def test_a_secret_inside_another_leaves_nothing_behind():
    assert split(b"abcdef abc\n", secrets=("abc", "abcdef")) == ["*** ***"]


def test_an_empty_secret_changes_nothing():
    assert split(b"abc\n", secrets=("", " ")) == ["abc"]


def test_invalid_utf8_is_replaced_and_the_rest_kept():
    assert split(b"caf\xc3\xa9 \xff\xfe ok\n") == ["café \ufffd\ufffd ok"]


def test_a_character_across_two_reads_is_whole():
    data = "größe 🎉\n".encode()
    for cut in range(1, len(data)):
        assert split(data, (cut, len(data))) == ["größe 🎉"]


def test_of_a_progress_line_the_last_state_counts():
    assert split(b"10%\r50%\r100%\nnext\n") == ["100%", "next"]
    assert split(b"\r10%\r50%\r100%") == ["100%"]


def test_an_unfinished_progress_line_gives_its_latest_complete_state_once():
    splitter = LineSplitter(Redactor((SECRET,)))
    assert splitter.feed(f"10%\r20% {SECRET}\r3".encode()) == []
    assert splitter.has_progress
    assert splitter.take_progress() == ["20% ***"]
    assert not splitter.has_progress
    assert splitter.feed(b"0%\n") == ["30%"]


def test_a_progress_state_that_a_later_part_has_overtaken_is_not_shown():
    splitter = LineSplitter(Redactor(()))
    parts = splitter.feed(b"91%\r98% " + b"w" * (2 * LINE_LIMIT))
    assert parts[0].startswith("98% w")
    assert not splitter.has_progress
    assert splitter.take_progress() == []


def test_a_carriage_return_that_may_belong_to_a_line_end_is_not_progress():
    splitter = LineSplitter(Redactor(()))
    assert splitter.feed(b"100%\r") == []
    assert not splitter.has_progress
    assert splitter.feed(b"\n") == ["100%"]


def test_a_progress_line_without_end_needs_little_memory():
    splitter = LineSplitter(Redactor(()))
    for percent in range(20_000):
        splitter.feed(b"%d of 20000 bytes\r" % percent)
    assert splitter.held < 100


def test_a_line_over_the_limit_comes_in_marked_parts():
    line = b"x" * (2 * LINE_LIMIT + 10)
    assert [len(part) for part in split(line + b"\nnext\n")] == [
        LINE_LIMIT + len(CONTINUES),
        LINE_LIMIT + len(CONTINUES),
        10,
        4,
    ]


def test_a_line_of_exactly_the_limit_is_whole():
    assert split(b"x" * LINE_LIMIT + b"\n") == ["x" * LINE_LIMIT]


def test_a_huge_line_is_never_held_whole():
    splitter = LineSplitter(Redactor((SECRET,)))
    held = 0
    for _ in range(160):
        splitter.feed(b"y" * LINE_LIMIT)
        held = max(held, splitter.held)
    assert held <= LINE_LIMIT + len(SECRET)


@pytest.mark.parametrize("back", range(len(SECRET) + 2))
def test_a_secret_across_the_cut_of_a_long_line_is_not_cut(back):
    line = "z" * (LINE_LIMIT - back) + SECRET + "z" * 100
    whole = "".join(part.removesuffix(CONTINUES) for part in split(line.encode() + b"\n"))
    assert whole == line.replace(SECRET, "***")


pieces = st.lists(
    st.sampled_from(
        [b"\n", b"\r", b"\r\n", b"a", b"\xc3", b"\xa9", b"\xff", SECRET.encode(), SECRET[:5].encode()]
    )
    | st.integers(LINE_LIMIT - 30, LINE_LIMIT + 30).map(lambda n: b"w" * n),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(pieces, st.lists(st.integers(1, 70_000), min_size=1, max_size=4))
def test_lines_do_not_depend_on_how_the_bytes_arrive(parts, sizes):
    data = b"".join(parts)
    sizes = [max(size, len(data) // 200) for size in sizes]
    assert split(data, sizes) == split(data)
