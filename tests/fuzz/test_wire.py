"""Bytes on the port of a running agent: whatever came, it answers as before and holds on to nothing."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websocket import create_connection

from tests.agent import Agent, wait_until
from tests.conftest import AgentFactory

STREAMS = 4
GET = b"GET /instances HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\n\r\n"
POST = (
    b"POST /instances HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nContent-Type: application/json\r\n"
    b'Content-Length: 32\r\n\r\n{"config": {"alias": 5, "a": 1}}'
)
CHUNKED = (
    b"PUT /instances/x HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
)
FORM = (
    b"POST /instances HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\n"
    b"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 61\r\n\r\n"
    b'--b\r\nContent-Disposition: form-data; name="config"\r\n\r\n1\r\n--b--'
)
UPGRADE = (
    b"GET /instances/ID/logs HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
PIECES = [
    *(b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b"Content-Length: 5\r\n", b"Content-Length: -1\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: x\r\n", b"Expect: 100-continue\r\n"),
    *(
        b"X-A: " + b"a" * 9000 + b"\r\n",
        b"ffffffff\r\n",
        b"\xff\xfe",
        b"%00",
        b"?since=-1&tail=x",
        b"HTTP/9.9",
    ),
]
FRAMES = [
    *(b"\x81\x85\0\0\0\0hello", b"\x89\x80\0\0\0\0", b"\x8a\x80\0\0\0\0", b"\x88\x82\0\0\0\0\x03\xe8"),
    *(b"\x01\x81\0\0\0\0a", b"\x80\x81\0\0\0\0b", b"\x81\x05hello", b"\xf1\x80\0\0\0\0", b"\x8f\x80\0\0\0\0"),
    *(b"\x81\xff" + b"\xff" * 8 + b"\0\0\0\0", b"\x81\xfe\xff\xff\0\0\0\0" + b"a" * 70_000),
    *(b"\x88\x81\0\0\0\0a", b"\x81\x82\0\0\0\0\xff\xff"),
]


@pytest.fixture(scope="module")
def agent(shared_agents: AgentFactory) -> Iterator[Agent]:
    agent = shared_agents(MAX_STREAMS=str(STREAMS), PING_INTERVAL_S="2")
    agent.start()
    [worker] = psutil.Process(agent.process.pid).children()  # type: ignore[union-attr]
    instance_id = agent.create({"alias": "a", "model": "/m.gguf"})
    agent.address = instance_id  # type: ignore[attr-defined]
    with _streams(agent, instance_id):
        pass
    before = worker.num_fds()
    yield agent
    with _streams(agent, instance_id):  # none of the places is held any more
        assert agent.get("/health").json()["status"] == "healthy"
    wait_until(lambda: worker.num_fds() <= before, 30, "the connections to be closed")
    assert worker.is_running(), "it is still the same process"
    assert "unexpected error" not in agent.log()
    assert "Traceback" not in agent.log()


def _streams(agent: Agent, instance_id: str) -> ExitStack:
    """As many streams as there may be; they come from those before, which may take a moment to end."""
    stack = ExitStack()

    def opened() -> Any:
        return create_connection(
            f"ws://127.0.0.1:{agent.port}/instances/{instance_id}/logs",
            header={"X-API-Key": agent.key},
            timeout=10,
        )

    for _ in range(STREAMS):
        stack.callback(wait_until(lambda: _try(opened), 30, "a free stream").close)
    return stack


def _try(call: Any) -> Any:
    try:
        return call()
    except Exception:  # noqa: BLE001 - refused, for now
        return None


def exchange(agent: Agent, data: bytes) -> bytes:
    """Send all, say that no more comes, and read until the agent hangs up."""
    data = data.replace(b"KEY", agent.key.encode()).replace(b"ID", agent.address.encode())  # type: ignore[attr-defined]
    received = b""
    with socket.create_connection(("127.0.0.1", agent.port), timeout=30) as client:
        try:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            while more := client.recv(65536):
                received += more
        except (ConnectionError, BrokenPipeError):
            pass  # it hung up before it had read all of it
    return received


@st.composite
def spoilt(draw: st.DrawFn, requests: list[bytes], pieces: list[bytes]) -> bytes:
    data = b"".join(draw(st.lists(st.sampled_from(requests), min_size=1, max_size=3)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        piece = draw(st.sampled_from(pieces) | st.binary(max_size=5))
        data = data[:at] + piece + data[at + draw(st.integers(0, 4)) :]
    return data[: draw(st.integers(0, len(data)) | st.just(len(data)))]


@given(spoilt([GET, POST, CHUNKED, FORM, UPGRADE], PIECES))
def test_any_request(agent: Agent, data: bytes) -> None:
    answer = exchange(agent, data)
    assert answer == b"" or answer.startswith(b"HTTP/1.")
    assert b"HTTP/1.1 500" not in answer


@given(st.lists(st.sampled_from(FRAMES) | st.binary(max_size=20), max_size=6).map(b"".join))
def test_any_frames(agent: Agent, frames: bytes) -> None:
    """A stream that was hung up on gives its place back soon, not at once."""
    wait_until(lambda: exchange(agent, UPGRADE + frames).startswith(b"HTTP/1.1 101"), 30, "a free stream")
