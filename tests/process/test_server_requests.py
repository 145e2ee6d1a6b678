"""What the worker does with requests that come slowly, in pieces, too large or broken."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.agent import wait_until
from tests.served import Served, read_all

CLOSE = b"Connection: close\r\n\r\n"
HEAD = b"POST /echo HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One for all tests here: each has to leave it in order."""
    served = Served(tmp_path_factory.mktemp("served"), {})
    served.start()
    yield served
    served.end()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    "start",
    [b"", b"G", b"GET /health HTTP/1.1\r\nHost: x\r\n", HEAD + b"Content-Length: 9\r\n\r\nhalf"],
    ids=["silent", "one byte", "half a head", "half a body"],
)
def test_more_stalled_clients_than_the_server_takes_hold_no_thread(served: Served, start: bytes) -> None:
    with ExitStack() as stack:
        for _ in range(600):
            stack.enter_context(served.connect(start))
        answer = served.talk(b"GET /health HTTP/1.1\r\nHost: x\r\n" + CLOSE)
    assert status_of(answer) == 200
    assert answer.count(b"request-") < 4


def test_clients_that_do_not_read_hold_no_thread(served: Served) -> None:
    with ExitStack() as stack:
        for _ in range(100):
            quiet = stack.enter_context(socket.socket())
            quiet.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            quiet.connect(("127.0.0.1", served.port))
            quiet.sendall(b"GET /big/1000000 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status_of(served.talk(b"GET /health HTTP/1.1\r\nHost: x\r\n" + CLOSE)) == 200


def test_a_slow_reader_gets_all_of_its_answer(served: Served) -> None:
    with served.connect(b"GET /big/9000000 HTTP/1.1\r\nHost: x\r\n" + CLOSE) as slow:
        wait_until(lambda: served.get("/health").ok, 5, "another answer meanwhile")
        assert body_of(read_all(slow)) == b"x" * 9_000_000


def test_a_request_in_single_bytes_is_answered(served: Served) -> None:
    with served.connect() as connection:
        for byte in HEAD + b"Content-Length: 5\r\n" + CLOSE + b"hello":
            connection.send(bytes([byte]))
        assert body_of(read_all(connection)) == b"hello"


def test_a_chunked_body_in_single_bytes_is_answered(served: Served) -> None:
    with served.connect() as connection:
        chunks = b"3;a=b\r\nhel\r\n2\r\nlo\r\n0\r\nX-Trailer: 1\r\n\r\n"
        for byte in HEAD + b"Transfer-Encoding: chunked\r\n" + CLOSE + chunks:
            connection.send(bytes([byte]))
        assert body_of(read_all(connection)) == b"hello"


def test_pipelined_requests_are_answered_in_order(served: Served) -> None:
    requests = b"".join(HEAD + b"Content-Length: 1\r\n\r\n%d" % number for number in range(9))
    answers = served.talk(requests + HEAD + b"Content-Length: 1\r\n" + CLOSE + b"9")
    assert [part[-1:] for part in answers.split(b"HTTP/1.1 200 OK")[1:]] == [b"%d" % n for n in range(10)]


def test_a_client_that_asks_first_is_told_to_send_its_body(served: Served) -> None:
    with served.connect(HEAD + b"Content-Length: 5\r\nExpect: 100-continue\r\n" + CLOSE) as connection:
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"hello")
        answer = read_all(connection)
        assert status_of(answer) == 200
        assert body_of(answer) == b"hello"


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(served: Served) -> None:
    with served.connect(HEAD + b"Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n") as connection:
        answer = read_all(connection)
    assert status_of(answer) == 413
    assert "larger than" in json.loads(body_of(answer))["detail"]


def test_a_chunked_body_that_grows_too_large_is_refused(served: Served) -> None:
    with served.connect(HEAD + b"Transfer-Encoding: chunked\r\n\r\n") as connection:
        for _ in range(20):
            connection.sendall(b"100000\r\n" + b"x" * 0x100000 + b"\r\n")
        assert status_of(connection.recv(1000)) == 413


def test_http_1_0_and_keep_alive(served: Served) -> None:
    assert status_of(served.talk(b"GET /health HTTP/1.0\r\n\r\n")) == 200
    with served.connect() as connection:
        for _ in range(3):
            connection.sendall(b"GET /big/5 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(10000).endswith(b"\r\n\r\nxxxxx")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\n\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"y" * 5000 + b" HTTP/1.1\r\n\r\n", 414),
        (HEAD + b"Content-Length: five\r\n\r\nhello", 400),
        (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: sealed\r\n\r\n", 501),
        (HEAD + b"Expect: miracles\r\n\r\n", 417),
        (b"GET /fail HTTP/1.1\r\nHost: x\r\n" + CLOSE, 500),
    ],
)
def test_broken_requests_get_a_clear_status(served: Served, request_bytes: bytes, status: int) -> None:
    assert status_of(served.talk(request_bytes)) == status
    assert served.get("/health").status_code == 200


def test_an_answer_that_breaks_off_ends_the_connection(served: Served) -> None:
    assert served.talk(b"GET /fail-late HTTP/1.1\r\nHost: x\r\n\r\n").endswith(b"first")
    assert served.get("/health").status_code == 200


def test_requests_that_wait_never_hold_up_the_others(make_served) -> None:
    served = make_served(THREADS="4", MAX_STREAMS="1")
    served.start()
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(served.connect(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"))
        wait_until(lambda: served.notes.count("waiting") == 20, 10, "all to be worked on")
        assert served.get("/health", timeout=5).status_code == 200
        assert served.stop() == 0
