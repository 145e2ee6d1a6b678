"""Where a request ends, however its bytes arrive."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solarhost.server.intake import MAX_BODY_BYTES, MAX_HEAD_BYTES, Intake, TooLarge

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'5\r\nhello\r\nA;name="a;b"\r\n0\r\n\r\n34567\r\n0\r\nTrailer: 1\r\n\r\n'
)


def feed(intake: Intake, data: bytes, cuts: list[int]) -> list[bytes]:
    """The requests that come out of `data`, cut at these places."""
    requests = []
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in pairwise(edges):
        whole = intake.feed(data[start:end])
        while whole:
            requests.append(intake.take())
            whole = bool(len(intake)) and intake.feed(b"")
    return requests


@given(
    st.lists(st.sampled_from([GET, POST, CHUNKED]), max_size=5),
    st.lists(st.integers(min_value=0), max_size=20),
)
def test_requests_come_out_as_they_went_in(requests: list[bytes], cuts: list[int]) -> None:
    intake = Intake()
    assert feed(intake, b"".join(requests), cuts) == requests
    assert len(intake) == 0


@given(st.binary(max_size=300), st.lists(st.integers(min_value=0), max_size=5))
def test_no_bytes_are_too_strange(data: bytes, cuts: list[int]) -> None:
    assert data.startswith(b"".join(feed(Intake(), data, cuts)))


@pytest.mark.parametrize("request_bytes", [GET, POST, CHUNKED])
def test_every_part_is_incomplete(request_bytes: bytes) -> None:
    for size in range(len(request_bytes)):
        assert not Intake().feed(request_bytes[:size])


def test_the_expectation_is_answered_once_and_taken_out() -> None:
    intake = Intake()
    assert not intake.feed(POST.replace(b"Host: x", b"Expect: 100-Continue").removesuffix(b"hello"))
    assert intake.wants_continue()
    assert not intake.wants_continue()
    assert intake.feed(b"hello")
    assert intake.take() == POST.replace(b"Host: x\r\n", b"")


def test_an_expectation_with_its_body_needs_no_answer() -> None:
    intake = Intake()
    assert intake.feed(POST.replace(b"Host: x", b"Expect: 100-continue"))
    assert not intake.wants_continue()


def test_a_head_without_end_is_too_large() -> None:
    intake = Intake()
    with pytest.raises(TooLarge) as error:
        for _ in range(MAX_HEAD_BYTES):
            intake.feed(b"GET / HTTP/1.1\r\nX: 1\r\n")
    assert error.value.status == 431


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1),
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % (MAX_BODY_BYTES + 1),
    ],
)
def test_a_body_that_is_announced_too_large_is_refused_at_once(request_bytes: bytes) -> None:
    with pytest.raises(TooLarge) as error:
        Intake().feed(request_bytes)
    assert error.value.status == 413


@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: -1\r\n\r\n",
        b"Transfer-Encoding: gzip\r\n\r\n",
        b"X\n\n",
        b"Transfer-Encoding: chunked\r\n\r\nx\r\n",
    ],
)
def test_what_is_malformed_counts_as_whole(rest: bytes) -> None:
    assert Intake().feed(b"POST / HTTP/1.1\r\n" + rest)
