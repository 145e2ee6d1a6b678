"""What answers in the place of the Docker engine may say anything."""

import json
import socket
import threading
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from struct import pack
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from solarhost.containers.errors import EngineAway, EngineRefused
from solarhost.containers.images import pull_progress
from solarhost.containers.longcall import LongCall
from solarhost.containers.output import Output
from tests.fuzz.strategies import mutated

STAMP = b"2026-11-30T04:57:06.645034295Z "
HEADS = [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 404 Not Found\r\n\r\n", b"HTTP/1.0 500 x\r\nA: b\r\n\r\n"]
EVENTS: list[Any] = [
    {"status": "Downloading", "id": "a", "progressDetail": {"current": 1, "total": 5}},
    {"error": "no space", "errorDetail": {"message": "no space"}},
    {"status": "Done"},
]


def answered(parts: list[bytes]) -> LongCall:
    """A call to an engine that sends `parts`, one after the other, and hangs up."""
    with TemporaryDirectory() as name, socket.socket(socket.AF_UNIX) as listener:
        path = str(Path(name) / "docker.sock")
        listener.bind(path)
        listener.listen()
        call = LongCall(f"unix://{path}", "GET", "/x", doing="try")

        def talk() -> None:
            with connection, suppress(OSError):
                for part in parts:
                    connection.sendall(part)

        connection, _ = listener.accept()
        threading.Thread(target=talk).start()
        return call


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(edges)]


places = st.lists(st.integers(0, 10_000), max_size=5)
heads = st.sampled_from(HEADS) | st.binary(max_size=60).map(lambda data: data + b"\r\n\r\n")
bodies = st.binary(max_size=60) | st.sampled_from(
    [b"[" * 50_000, b'{"message": 5}', b"{}", b'{"message": "x"}']
)


@given(heads, bodies, places)
def test_an_answer_is_understood_or_the_engine_is_away(head: bytes, body: bytes, where: list[int]) -> None:
    call = answered(cut(head + body, where))
    try:
        with suppress(EngineAway, EngineRefused):
            call.await_answer(10)
            while call.read():
                pass
    finally:
        call.close()


frames = st.tuples(st.integers(0, 255), st.binary(max_size=30))


@given(st.lists(frames, max_size=6), st.binary(max_size=7), places)
def test_every_frame_comes_whole_however_it_is_cut(
    sent: list[tuple[int, bytes]], rest: bytes, where: list[int]
) -> None:
    data = b"".join(pack(">BxxxL", stream, len(text)) + text for stream, text in sent)
    call = answered(cut(HEADS[0] + data + rest, where))
    call.await_answer(10)
    chunks = [chunk for batch in Output(call, stored=False) for chunk in batch]
    call.close()
    assert [chunk.data for chunk in chunks] == [text for _, text in sent]
    assert [chunk.stream for chunk in chunks] == ["stdout" if kind < 2 else "stderr" for kind, _ in sent]


events = st.sampled_from(EVENTS).flatmap(lambda event: st.just(event) | mutated(event))


@given(
    st.lists(events.map(lambda event: json.dumps(event).encode() + b"\n") | st.binary(max_size=40)), places
)
@example([b'{"status": "x", "progressDetail": [5]}\n'], [])
@example([b'{"id": "a", "progressDetail": {"current": null, "total": 5}}\n'], [])
def test_any_progress_of_a_download_ends(lines: list[bytes], where: list[int]) -> None:
    call = answered(cut(HEADS[0] + b"".join(lines), where))
    with suppress(EngineRefused, EngineAway):
        json.dumps(list(pull_progress(call, "pull")))
    call.close()
