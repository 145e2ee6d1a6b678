"""A request that comes again, byte for byte, is answered by the poller: with the newest, and as before."""

import json
import socket
from collections.abc import Callable, Iterator

import pytest

from solarhost.server.connection import MAX_UNSENT_BYTES
from solarhost.server.repeats import MAX_REMEMBERED, MAX_REQUEST_BYTES, Repeats
from tests.agent import Agent

BODY = b"x" * 100


@pytest.fixture
def connection(shared_agent: Agent) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", shared_agent.port), timeout=10) as connection:
        yield connection


def request(path: str, key: str, *more: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", f"X-API-Key: {key}", *more, "", ""]).encode()


def ask(connection: socket.socket, asked: bytes) -> tuple[list[str], dict]:
    """Head and body of the answer; the connection must stay open."""
    connection.sendall(asked)
    return read(connection, bytearray())


def read(connection: socket.socket, received: bytearray) -> tuple[list[str], dict]:
    while (end := received.find(b"\r\n\r\n")) < 0:
        received += connection.recv(65536) or pytest.fail(f"closed after {bytes(received)!r}")
    head = received[:end].decode().split("\r\n")
    length = int(next(line for line in head if line.startswith("Content-Length:"))[15:])
    while len(received) < end + 4 + length:
        received += connection.recv(65536) or pytest.fail("closed within the body")
    body = json.loads(bytes(received[end + 4 : end + 4 + length]))
    del received[: end + 4 + length]
    return [line for line in head if not line.startswith("Date:")], body


@pytest.mark.parametrize("path", ["/instances", "/resources"])
def test_the_second_answer_is_like_the_first(
    shared_agent: Agent, connection: socket.socket, path: str
) -> None:
    asked = request(path, shared_agent.key)
    heads, bodies = zip(*(ask(connection, asked) for _ in range(3)), strict=True)
    assert heads[1] == heads[2] == heads[0]
    assert list(bodies[1]) == list(bodies[2]) == list(bodies[0])


def test_what_has_changed_is_in_the_next_answer(shared_agent: Agent, connection: socket.socket) -> None:
    asked = request("/instances", shared_agent.key)
    for number in range(3):
        before = {row["id"] for row in ask(connection, asked)[1]}
        made = shared_agent.create({"model": "/tmp/none.gguf", "alias": f"again-{number}"})
        assert {row["id"] for row in ask(connection, asked)[1]} == before | {made}


def test_a_known_request_opens_nothing_for_another_key(
    shared_agent: Agent, connection: socket.socket
) -> None:
    ask(connection, request("/instances", shared_agent.key))
    head, body = ask(connection, request("/instances", shared_agent.key[:-1]))
    assert (head[0], body) == ("HTTP/1.1 401 UNAUTHORIZED", {"detail": "Invalid or missing API key"})


def test_requests_in_one_packet_are_answered_in_order(shared_agent: Agent, connection: socket.socket) -> None:
    listing = request("/instances", shared_agent.key)
    ask(connection, listing)
    connection.sendall(listing + request("/memory", shared_agent.key) + listing)
    received = bytearray()
    bodies = [read(connection, received)[1] for _ in range(3)]
    assert [type(body) for body in bodies] == [list, dict, list]


def test_a_client_that_wants_to_close_is_closed(shared_agent: Agent) -> None:
    asked = request("/instances", shared_agent.key, "Connection: close")
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", shared_agent.port), timeout=10) as connection:
            assert "Connection: close" in ask(connection, asked)[0]
            assert connection.recv(1) == b""


def ready(body: bytes) -> Callable[[], tuple[list[tuple[str, str]], bytes]]:
    return lambda: ([("Content-Length", str(len(body)))], body)


def test_only_the_same_bytes_are_the_same_request() -> None:
    repeats = Repeats()
    repeats.remember(request("/a", "key"), ready(BODY))
    assert repeats.answer(request("/a", "key")).endswith(b"\r\n\r\n" + BODY)
    for other in (request("/a", "other"), request("/b", "key"), request("/a", "key") + b"x"):
        assert repeats.answer(other) is None


def test_what_is_remembered_is_bounded() -> None:
    repeats = Repeats()
    long = request("/a", "key", "Filler: " + "x" * MAX_REQUEST_BYTES)
    repeats.remember(long, ready(BODY))
    assert repeats.answer(long) is None
    for number in range(MAX_REMEMBERED + 1):
        repeats.remember(request(f"/{number}", "key"), ready(BODY))
    assert repeats.answer(request("/0", "key")) is None
    assert repeats.answer(request("/1", "key")) is not None


def test_an_answer_that_the_poller_might_wait_with_is_left_to_a_thread() -> None:
    repeats = Repeats()
    repeats.remember(request("/a", "key"), ready(b"x" * MAX_UNSENT_BYTES))
    assert repeats.answer(request("/a", "key")) is None


def test_an_older_client_gets_its_own_version() -> None:
    repeats = Repeats()
    old = b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    repeats.remember(old, ready(BODY))
    assert repeats.answer(old) is None
