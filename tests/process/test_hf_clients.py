"""Clients of hf_server that send or read slowly, or not at all: nobody else notices."""

import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing

import psutil
import pytest
import requests

from tests.agent import wait_until
from tests.hf_models import save_causal
from tests.hf_process import KEY, Server

REQUEST_S, SILENCE_S, SEND_S = 5, 4, 10  # shorter than usual
SHORTER = (
    "from hf_server import connection, worker; "
    f"connection.SILENCE_S, connection.SEND_S, worker.REQUEST_S = {SILENCE_S}, {SEND_S}, {REQUEST_S}; "
    "connection.MAX_HELD_BYTES = 32 << 20"
)
MANY = 100  # more than the requests that may wait and run
COMPLETION = {"prompt": "hello", "max_tokens": 1}


def request(body: object = COMPLETION, path: str = "/v1/completions", key: str = KEY) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"

Connect = Callable[[bytes], socket.socket]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = save_causal(tmp_path_factory.mktemp("causal"))
    log = tmp_path_factory.mktemp("log") / "log"
    server = Server(folder, log, "--model-type=causal", "--max-queue=4", "--max-batch=8", first=SHORTER)
    server.wait_until_ready()
    yield server
    os.killpg(server.process.pid, signal.SIGKILL)
    server.process.wait()


@pytest.fixture
def connect(server: Server) -> Iterator[Connect]:
    """Connects, and sends what is given."""
    with ExitStack() as stack:

        def connect(data: bytes) -> socket.socket:
            sock = stack.enter_context(closing(socket.create_connection(("127.0.0.1", server.port), 30)))
            sock.sendall(data)
            return sock

        yield connect


def read_answer(sock: socket.socket) -> tuple[int, bytes]:
    """Status and body of the next answer, and no byte of the one after it."""
    head, end = b"", -1
    while end < 0:
        assert sock.recv(1, socket.MSG_PEEK), f"closed after {head!r}"
        head = sock.recv(4096, socket.MSG_PEEK)
        end = head.find(b"\r\n\r\n")
    head = sock.recv(end + 4)
    lines = head.decode().lower().split("\r\n")
    length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
    body = b""
    while len(body) < length:
        body += sock.recv(length - len(body))
    return int(lines[0].split()[1]), body


def refusal(sock: socket.socket) -> tuple[int, str]:
    """Status and code of the next answer."""
    status, body = read_answer(sock)
    return status, json.loads(body)["error"]["code"]


def others_are_served(server: Server, meanwhile: Sequence[socket.socket] = ()) -> None:
    """While the server still waits for the clients at `meanwhile`."""
    assert requests.get(f"{server.url}/health", timeout=60).status_code == 200
    headers = {"X-API-Key": KEY}
    answer = requests.post(f"{server.url}/v1/completions", json=COMPLETION, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    assert select.select(meanwhile, [], [], 0)[0] == []


def test_heads_that_stop(server, connect):
    stopped = [connect(request()[:20]) for _ in range(MANY)]
    others_are_served(server, stopped)
    assert {refusal(sock) for sock in stopped} == {(408, "request_timeout")}
    assert stopped[0].recv(1) == b""


def test_bodies_that_stop(server, connect):
    short, long = request(), request({**COMPLETION, "user": "x" * 200_000})
    stopped = [connect(short[:-5]) for _ in range(MANY)] + [connect(long[:-5]) for _ in range(MANY)]
    others_are_served(server, stopped)
    assert {refusal(sock) for sock in stopped} == {(408, "request_timeout")}


def test_bodies_of_more_bytes_than_the_server_holds(server, connect):
    body = request({**COMPLETION, "user": "x" * 15_000_000})[:-1]
    stopped = [connect(body) for _ in range(3)]
    (refused, *_), _, _ = select.select(stopped, [], [], 60)
    assert refusal(refused) == (429, "rate_limit_exceeded")
    others_are_served(server)
    assert {refusal(sock) for sock in stopped if sock is not refused} == {(408, "request_timeout")}
    wait_until(lambda: read_answer(connect(body + b"}"))[0] == 200, 30, "room for it again")


def test_connections_that_are_kept(server, connect):
    kept = [connect(HEALTH) for _ in range(MANY)]
    assert {read_answer(sock)[0] for sock in kept} == {200}
    others_are_served(server)
    for sock in kept[::10]:
        sock.sendall(request())
        assert read_answer(sock)[0] == 200


def test_more_connections_than_the_server_keeps(server, connect):
    for _ in range(1100):  # the first ones make room
        connect(b"GET")
    others_are_served(server)


def test_a_request_in_single_bytes(connect):
    sock = connect(b"")
    for byte in request():
        sock.sendall(bytes([byte]))
    assert read_answer(sock)[0] == 200


@pytest.mark.parametrize("after", ["\r\n", "\r\n\r", "\r\n\r\n", "{"])
def test_a_request_in_two_parts(server, connect, after):
    data = request()
    place = data.index(after.encode(), 40) + len(after)
    sock = connect(data[:place])
    assert requests.get(f"{server.url}/health", timeout=10).status_code == 200  # it has seen the first part
    sock.sendall(data[place:])
    assert read_answer(sock)[0] == 200


def test_requests_that_come_at_once(connect):
    half = request()
    sock = connect(HEALTH + request() + request({"prompt": 7}) + HEALTH + half[:30])
    assert [read_answer(sock)[0] for _ in range(4)] == [200, 200, 400, 200]
    sock.sendall(half[30:] + HEALTH)
    assert [read_answer(sock)[0] for _ in range(2)] == [200, 200]


def test_a_chunked_body_in_two_parts(connect):
    data = json.dumps(COMPLETION).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nX-API-Key: {KEY}\r\nTransfer-Encoding: chunked\r\n\r\n"
    sock = connect(head.encode() + b"%x\r\n" % len(data) + data[:5])
    sock.sendall(data[5:] + b"\r\n0\r\n\r\n" + HEALTH)
    assert [read_answer(sock)[0] for _ in range(2)] == [200, 200]


def test_a_chunk_without_size_is_refused(connect):
    head = f"POST /v1/completions HTTP/1.1\r\nX-API-Key: {KEY}\r\nTransfer-Encoding: chunked\r\n\r\n"
    status, body = read_answer(connect(head.encode() + b"size\r\n{}\r\n"))
    assert (status, json.loads(body)["error"]["type"]) == (400, "invalid_request_error")


def test_a_body_that_waits_to_be_asked_for(connect):
    head, _, body = request().partition(b"\r\n\r\n")
    sock = connect(head + b"\r\nExpect: 100-continue\r\n\r\n")
    expected = b"HTTP/1.1 100 Continue\r\n\r\n"
    assert sock.recv(len(expected), socket.MSG_WAITALL) == expected
    sock.sendall(body)
    assert read_answer(sock)[0] == 200


def test_a_head_without_end_is_refused(connect):
    sock = connect(b"GET /health HTTP/1.1\r\n" + b"A: b\r\n" * 20_000)
    assert refusal(sock) == (431, "head_too_large")


def test_a_wrong_key_is_refused_before_the_body_comes(connect):
    head = request({**COMPLETION, "user": "x" * 200_000}, key="wrong").partition(b"\r\n\r\n")[0]
    assert refusal(connect(head + b"\r\n\r\n")) == (401, "invalid_api_key")


def test_a_body_over_the_limit_is_read_and_refused(server):
    body = {"prompt": "x" * (17 * 1024 * 1024)}
    answer = requests.post(f"{server.url}/v1/completions", json=body, headers={"X-API-Key": KEY}, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


@pytest.fixture
def stream(server: Server, connect: Connect) -> socket.socket:
    """A stream of more than the kernel keeps for a client that doesn't read; the model is done with it."""
    body = {"messages": [{"role": "user", "content": "hello"}], "n": 4, "max_tokens": 240, "stream": True}
    body |= {"logprobs": True, "top_logprobs": 20, "logit_bias": {"2": -100}}
    done = server.metric("hf_server_generated_tokens_total") + 4 * 240
    sock = connect(request(body, "/v1/chat/completions"))
    wait_until(lambda: server.metric("hf_server_generated_tokens_total") >= done, 60, "the model to be done")
    return sock


def test_a_stream_that_is_read_late_is_whole(stream):
    time.sleep(SILENCE_S + 1)
    received = b""
    while not received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
        data = stream.recv(1 << 20)
        assert data, "the answer was cut"
        received += data


def test_a_stream_that_nobody_reads(server, stream):
    others_are_served(server)
    wait_until(lambda: "chat/completions status=499" in server.log(), 60, "the server to give up")
    assert len(stream.recv(15, socket.MSG_WAITALL)) == 15


def test_what_slow_clients_cost(server):
    """The last test: after all of the above."""
    worker = psutil.Process(server.process.pid).children()[0]
    assert worker.num_fds() < 100
