"""Bytes into lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solarhost.jobs import lines
from solarhost.jobs.lines import CONTINUES, LIMIT, Splitter
from solarhost.logs.redaction import Redactor

PLAIN = Redactor([])


def fed(splitter: Splitter, *chunks: bytes) -> list[str]:
    return [line for chunk in chunks for line in splitter.feed(chunk)]


def whole(splitter: Splitter, *chunks: bytes) -> list[str]:
    return [*fed(splitter, *chunks), *splitter.finish()]


def test_a_chunk_is_not_a_line():
    assert whole(Splitter(PLAIN), b"a", b"b\nc\n\nd") == ["ab", "c", "", "d"]


def test_a_character_cut_by_chunks_stays_whole_and_bad_bytes_are_replaced():
    euro = "€".encode()
    assert whole(Splitter(PLAIN), euro[:1], euro[1:] + b"\n\xff\n") == ["€", "\ufffd"]


def test_windows_line_ends_are_line_ends():
    assert whole(Splitter(PLAIN), b"a\r\nb\r\n") == ["a", "b"]
    assert whole(Splitter(PLAIN), b"a\r", b"\nb\r", b"\n") == ["a", "b"]


def test_a_progress_bar_gives_its_first_and_last_state_at_least(monkeypatch):
    assert whole(Splitter(PLAIN), b"\r1%", b"\r2%", b"\r3%", b"\n") == ["1%", "3%"]
    monkeypatch.setattr(lines, "PROGRESS_S", 0.0)
    assert whole(Splitter(PLAIN), b"\r1%", b"\r2%", b"\r3%", b"\n") == ["1%", "2%", "3%"]


def test_a_bar_that_writes_its_return_last_loses_nothing_at_its_end():
    assert whole(Splitter(PLAIN), b"1%\r", b"2%\r", b"3%\r", b"\nnext\n") == ["1%", "3%", "next"]
    assert whole(Splitter(PLAIN), b"1%\r", b"2%\r") == ["1%", "2%"]


@pytest.mark.parametrize("size", [LIMIT, LIMIT + 1, 3 * LIMIT + 7])
@pytest.mark.parametrize("ended", [True, False])
def test_a_long_line_comes_in_marked_parts(size, ended):
    data = b"x" * size + (b"\n" if ended else b"")
    chunks = [data[at : at + 30_000] for at in range(0, len(data), 30_000)]
    parts = whole(Splitter(PLAIN), *chunks)
    assert all(part.endswith(CONTINUES) for part in parts[:-1])
    assert not parts[-1].endswith(CONTINUES)
    assert "".join(part.removesuffix(CONTINUES) for part in parts) == "x" * size
    assert all(len(part.removesuffix(CONTINUES)) <= LIMIT for part in parts)


def test_no_secret_and_no_character_is_cut_in_two():
    secret = "s3cret-value"
    for shift in range(len(secret) + 2):
        data = b"x" * (LIMIT - shift) + secret.encode() + b"y" * 100
        assert secret[:3] not in "".join(whole(Splitter(Redactor([secret])), data, b"\n"))
        text = "x" * (LIMIT - shift) + "€" * 10
        assert "\ufffd" not in "".join(whole(Splitter(PLAIN), text.encode(), b"\n"))


@given(
    st.lists(st.sampled_from([b"ab", b"\n", b"c\n", b"\r", b"\xff", "é".encode()]), max_size=30),
    st.integers(0, 30),
)
def test_a_rewound_stream_goes_on_where_it_was(chunks, at):
    """Progress bars apart, whose pace depends on the clock."""
    chunks = [chunk for chunk in chunks if chunk != b"\r"]
    expected = whole(Splitter(PLAIN), *chunks)
    splitter = Splitter(PLAIN)
    before = fed(splitter, *chunks[:at])
    resumed = Splitter(PLAIN, lines=splitter.lines, offset=splitter.offset)
    resumed.rewind()
    assert before + whole(resumed, b"".join(chunks)) == expected


def test_a_rewound_long_line_goes_on_where_it_was():
    data = b"x" * (2 * LIMIT) + b"y\nnext\n"
    splitter = Splitter(PLAIN)
    before = fed(splitter, data[: LIMIT + 100])
    assert len(before) == 1
    splitter.rewind()
    after = whole(splitter, data)
    assert "".join(p.removesuffix(CONTINUES) for p in before + after) == "x" * (2 * LIMIT) + "ynext"
