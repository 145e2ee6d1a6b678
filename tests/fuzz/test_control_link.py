"""What answers in the place of solar-control may say anything: the link lives on and leaves nothing."""

import base64
import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from solarhost.control.news import News
from solarhost.logs.frames import text_frame
from tests.agent import wait_until
from tests.control_host import Host
from tests.fuzz.strategies import any_json, mutated

HANDSHAKE = {"sid": "s", "upgrades": [], "pingInterval": 25000, "pingTimeout": 20000, "maxPayload": 1000000}
EVENTS: list[Any] = [
    ["registration_ack", {"host_id": "h", "host_name": "n", "timestamp": "2026-01-01T00:00:00+00:00"}],
    ["pending", {"pending_id": "p", "message": "wait", "timestamp": "2026-01-01T00:00:00+00:00"}],
    ["command", {"id": "c", "action": "list", "instance_id": "i", "params": {"tail": 5}}],
    ["rejected", {"reason": "no"}],
    ["of_tomorrow", {}],
]
JOINED = '40/hosts,{"sid":"s"}'
JOIN = [
    [JOINED],
    ["40", JOINED],
    ['44/hosts,{"message":"unknown api key"}'],
    [],
]
packets = st.one_of(
    st.sampled_from(EVENTS)
    .flatmap(lambda event: st.just(event) | mutated(event))
    .map(lambda event: "42/hosts," + json.dumps(event)),
    st.sampled_from(EVENTS).flatmap(mutated).map(lambda event: "42/hosts,7" + json.dumps(event)),
    st.sampled_from(
        ["2", "3", "1", "6", "41/hosts,", "43/hosts,9[]", "45/hosts,1-[]", "42", "4", "", "42/hosts,["]
    ),
    st.text(st.characters(blacklist_categories=["Cs"]), max_size=10),
    any_json.map(lambda value: "4" + json.dumps(value)),
)
frames = st.one_of(packets.map(text_frame), st.binary(max_size=20))


class Peer:
    """Takes a WebSocket, greets as Engine.IO does, sends what it is given, and hangs up."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.script: list[bytes] = []
        self.served = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, suppress(OSError):
                client.settimeout(10)
                self._talk(client)
            self.served += 1

    def _talk(self, client: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            data = client.recv(65536)
            if not data:
                return  # the link was closed before it could ask
            head += data
        key = next(
            line.split()[1] for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key")
        )
        accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        client.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n" + b"".join(self.script)
        )
        client.shutdown(socket.SHUT_WR)
        while client.recv(65536):
            pass


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


@given(
    (st.just(HANDSHAKE) | mutated(HANDSHAKE)).map(lambda value: text_frame("0" + json.dumps(value))) | frames,
    st.sampled_from(JOIN).map(lambda texts: b"".join(map(text_frame, texts))),
    st.lists(frames, max_size=4),
)
@example(text_frame("0" + json.dumps({**HANDSHAKE, "pingInterval": 10**9})), b"", [text_frame("1")])
def test_whatever_answers_in_the_place_of_solar_control(
    peer: Peer, greeting: bytes, join: bytes, sent: list[bytes]
) -> None:
    before = threading.active_count()
    peer.script = [greeting, join, *sent]
    served = peer.served
    host = Host(peer.url, ws_reconnect_delay=0.01, ws_reconnect_max_delay=0.01)
    host.link.start()
    wait_until(
        lambda: peer.served > served + 1 or host.link.status()["state"] == "rejected",
        30,
        "the link to move on",
    )
    json.dumps(host.link.status(), allow_nan=False)
    host.close()
    wait_until(lambda: threading.active_count() <= before, 30, "its threads to end")


@given(any_json | st.dictionaries(st.just("host_id"), any_json))
def test_a_field_of_an_event_is_text_or_nothing(data: Any) -> None:
    assert isinstance(News(1, "registration_ack", data).text("host_id"), str | None)
