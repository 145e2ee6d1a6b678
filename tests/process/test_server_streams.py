"""WebSocket streams on a real server: order, ends, limits, and the threads that they leave."""

import json
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from websocket import ABNF, WebSocket, WebSocketBadStatusException, create_connection

from tests.agent import wait_until
from tests.served import Served

UPGRADE = (
    b"GET /instances/known/logs HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def start(folder: Path, **settings: str) -> Iterator[Served]:
    served = Served(folder, {"MAX_STREAMS": "12", "THREADS": "16", **settings})
    served.start()
    yield served
    served.end()


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from start(tmp_path_factory.mktemp("patient"), PING_INTERVAL_S="10")


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Pings often, and lets go soon."""
    yield from start(tmp_path_factory.mktemp("eager"), PING_INTERVAL_S="0.5")


@pytest.fixture
def served(patient: Served) -> Served:
    """Without streams, and without lines."""
    return emptied(patient)


@pytest.fixture
def eager_served(eager: Served) -> Served:
    return emptied(eager)


def emptied(served: Served) -> Served:
    assert served.post("/delete").status_code == 200
    wait_until(lambda: has_no_streams(served), 10, "the streams of the test before to end")
    assert served.post("/create").status_code == 200
    return served


def connect(served: Served, path: str = "/instances/known/logs", **options) -> WebSocket:
    return create_connection(f"ws://127.0.0.1:{served.port}{path}", timeout=10, **options)


@pytest.fixture
def open_stream(served: Served) -> Iterator:
    """Opens streams of the one instance there is."""
    with ExitStack() as stack:

        def open_stream(path: str = "/instances/known/logs", **options) -> WebSocket:
            stream = connect(served, path, **options)
            stack.callback(stream.shutdown)
            return stream

        yield open_stream


def next_message(stream: WebSocket) -> dict:
    return json.loads(stream.recv())


def close_code(stream: WebSocket) -> int:
    """Read on until the server's close frame."""
    while True:
        opcode, data = stream.recv_data()
        if opcode == ABNF.OPCODE_CLOSE:
            return struct.unpack("!H", data[:2])[0]


def put(served: Served, *lines: str) -> None:
    assert served.post("/lines", list(lines)).status_code == 200


def has_no_streams(served: Served) -> bool:
    health = served.get("/health").json()
    return health["streams"] == 0 and "stream-input" not in health["threads"]


def test_buffered_lines_come_first_then_each_new_one(served: Served, open_stream) -> None:
    put(served, "a", "b")
    stream = open_stream()
    put(served, "c")
    messages = [next_message(stream) for _ in range(3)]
    assert [(m["seq"], m["line"]) for m in messages] == [(0, "a"), (1, "b"), (2, "c")]


@pytest.mark.parametrize(("query", "first"), [("since=1", 2), ("tail=1", 4), ("since=0&tail=3", 2)])
def test_since_and_tail_choose_where_it_begins(served: Served, open_stream, query: str, first: int) -> None:
    put(served, *"abcde")
    assert next_message(open_stream(f"/instances/known/logs?{query}"))["seq"] == first


@pytest.mark.parametrize("query", ["since=x", "since=-2", "tail=-1", "tail=1.5", "tail=" + "9" * 5000])
def test_bad_numbers_refuse_the_upgrade(open_stream, query: str) -> None:
    with pytest.raises(WebSocketBadStatusException) as refusal:
        open_stream(f"/instances/known/logs?{query[:2000]}")
    assert refusal.value.status_code == 422
    assert list(json.loads(refusal.value.resp_body)["errors"]) == [query.partition("=")[0]]


def test_states_come_as_messages(open_stream) -> None:
    stream = open_stream("/instances/known/state")
    assert next_message(stream) == {"type": "instance_state", "data": {"busy": False}}
    change = next_message(stream)
    assert change["seq"] == 1
    assert change["data"] == {"busy": True}


def test_an_unknown_instance_is_named_then_closed(served: Served, open_stream) -> None:
    for path in ("/instances/unknown/logs", "/instances/unknown/state"):
        stream = open_stream(path)
        assert next_message(stream) == {"error": "Instance not found"}
        assert close_code(stream) == 1000
    wait_until(lambda: has_no_streams(served), 5, "both streams to end")


def test_what_can_not_be_read_now_closes_with_1013_and_why(served: Served, open_stream) -> None:
    stream = open_stream("/instances/unread/logs")
    opcode, data = stream.recv_data()
    assert (opcode, struct.unpack("!H", data[:2])[0]) == (ABNF.OPCODE_CLOSE, 1013)
    assert data[2:].decode() == "/" + "é" * 61  # of a longer sentence, what a close frame has room for
    wait_until(lambda: has_no_streams(served), 5, "the stream to end")


def test_a_deleted_instance_closes_with_1000(served: Served, open_stream) -> None:
    stream = open_stream()
    served.post("/delete")
    assert close_code(stream) == 1000


def test_a_stop_closes_ten_streams_with_1001(make_served) -> None:
    served = make_served()
    served.start()
    put(served, "a")
    streams = [connect(served) for _ in range(10)]
    for stream in streams:
        next_message(stream)
    served.process.send_signal(signal.SIGTERM)
    assert [close_code(stream) for stream in streams] == [1001] * 10
    assert served.process.wait(10) == 0
    for stream in streams:
        stream.shutdown()


def test_one_too_many_is_refused_and_a_free_place_is_given_again(served: Served, open_stream) -> None:
    streams = [open_stream() for _ in range(12)]
    with pytest.raises(WebSocketBadStatusException) as refusal:
        open_stream()
    assert refusal.value.status_code == 503
    assert int(refusal.value.resp_headers["retry-after"]) > 0
    assert served.get("/health").status_code == 200
    for stream in streams:
        stream.close()
    wait_until(lambda: has_no_streams(served), 5, "the streams to end")
    put(served, "a")
    assert next_message(open_stream())["line"] == "a"


def test_the_subprotocol_with_the_key_is_echoed(served: Served) -> None:
    offer = b"Sec-WebSocket-Protocol: other, solar-key.YWJj\r\nSec-WebSocket-Version"
    with served.connect(UPGRADE.replace(b"Sec-WebSocket-Version", offer)) as connection:
        assert b": solar-key.YWJj\r\n" in connection.recv(1000)


@pytest.mark.parametrize(
    "missing", [b"Sec-WebSocket-Version: 13\r\n", b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"]
)
def test_an_incomplete_upgrade_is_a_400(served: Served, missing: bytes) -> None:
    with served.connect(UPGRADE.replace(missing, b"")) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_a_key_of_an_upgrade_that_is_no_ascii_is_a_400(served: Served) -> None:
    with served.connect(UPGRADE.replace(b"Key: AA", b"Key: \xe9A")) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_pings_are_answered_while_lines_flow(served: Served, open_stream) -> None:
    stream = open_stream()
    for number in range(20):
        stream.ping(b"%d" % number)
        put(served, f"line {number}")
    lines, pongs = [], []
    while len(lines) < 20 or len(pongs) < 20:
        opcode, frame = stream.recv_data_frame(control_frame=True)
        if opcode == ABNF.OPCODE_TEXT:
            lines.append(json.loads(frame.data)["seq"])
        elif opcode == ABNF.OPCODE_PONG:
            pongs.append(frame.data)
    assert lines == list(range(20))
    assert pongs == [b"%d" % number for number in range(20)]


def test_an_idle_stream_that_answers_pings_stays(eager_served: Served) -> None:
    stream = connect(eager_served)
    pings = 0
    while pings < 4:
        opcode, _ = stream.recv_data_frame(control_frame=True)  # answers pings by itself
        pings += opcode == ABNF.OPCODE_PING
    put(eager_served, "still here")
    assert next_message(stream)["line"] == "still here"
    stream.shutdown()


def test_a_peer_that_does_not_answer_pings_is_let_go(eager_served: Served) -> None:
    with eager_served.connect(UPGRADE) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 101 ")
        wait_until(lambda: not has_no_streams(eager_served), 5, "the stream to begin")
        wait_until(lambda: has_no_streams(eager_served), 5, "the stream to end")


def test_a_reader_that_never_reads_is_let_go(eager_served: Served) -> None:
    with socket.socket() as quiet:
        quiet.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        quiet.connect(("127.0.0.1", eager_served.port))
        quiet.sendall(UPGRADE)
        wait_until(lambda: not has_no_streams(eager_served), 5, "the stream to begin")
        for _ in range(5):
            put(eager_served, *["x" * 1_000_000] * 3)
        wait_until(lambda: has_no_streams(eager_served), 10, "the stream to end")


def test_a_peer_that_talks_is_let_go(served: Served, open_stream) -> None:
    stream = open_stream()
    wait_until(lambda: not has_no_streams(served), 5, "the stream to begin")
    with pytest.raises((ConnectionError, OSError)):
        while True:
            stream.send("x" * 10_000)
    wait_until(lambda: has_no_streams(served), 5, "the stream to end")


def test_a_hundred_streams_leave_nothing_behind(served: Served, open_stream) -> None:
    put(served, "a")
    for _ in range(10):
        for stream in [open_stream() for _ in range(10)]:
            next_message(stream)
            stream.shutdown()  # as a client that vanishes
        wait_until(lambda: has_no_streams(served), 5, "the streams to end")
    worker = served.worker
    assert len(list(Path(f"/proc/{worker}/fd").iterdir())) < 40
    assert len(served.threads()) <= 16 + 2


def test_a_slow_client_is_told_what_it_missed(served: Served, open_stream) -> None:
    put(served, *[f"old {n}" for n in range(1500)])
    stream = open_stream("/instances/known/logs?since=99")
    assert next_message(stream) == {"dropped": 400, "next_seq": 500}
    assert next_message(stream)["seq"] == 500
