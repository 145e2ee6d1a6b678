"""Stands where solar-control should be and gives up at a chosen step of the handshake.

The real server can't be made to do that, so this one speaks just enough of the protocols by hand.
"""

import base64
import hashlib
import socket
import struct
from contextlib import suppress
from threading import Thread

STEPS = (
    "accept",  # TCP is there, and closes
    "request",  # closes after it has read the request
    "http_502",  # a proxy without a server behind it
    "http_401",
    "half_answer",  # closes within the headers
    "no_http",
    "upgraded",  # WebSocket is there, and closes
    "strange_greeting",  # is no Engine.IO
    "greeted",  # Engine.IO is there, and closes
    "asked",  # closes when the host asks for the namespace
    "joined",  # the namespace is there, and the connection closes
    "left",  # the namespace is there, and ends at once; the connection stays open
    "acknowledged",  # registered, and closes
)
GREETING = '0{"sid":"s","upgrades":[],"pingInterval":25000,"pingTimeout":20000}'
JOINED = '40/hosts,{"sid":"n"}'
LEFT = "41/hosts,"
ACKNOWLEDGED = '42/hosts,["registration_ack",{"host_id":"h-0","host_name":"x","timestamp":"now"}]'
AFTER_UPGRADE = {
    "upgraded": [],
    "strange_greeting": ["hello"],
    "greeted": [GREETING],
    "asked": [GREETING, "?"],
    "joined": [GREETING, "?", JOINED],
    "left": [GREETING, "?", JOINED, LEFT, "?"],
    "acknowledged": [GREETING, "?", JOINED, ACKNOWLEDGED],
}


class FaultyServer:
    """Serves one connection after the other until `close`."""

    def __init__(self, port: int, step: str):
        self._step = step
        self.served = 0
        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.settimeout(20)
        self.port = self._listener.getsockname()[1]
        self._thread = Thread(target=self._run, name=f"faulty-{step}", daemon=True)
        self._thread.start()

    def __enter__(self) -> "FaultyServer":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(20)

    def _run(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                with connection, suppress(OSError):
                    connection.settimeout(5)
                    self._serve(connection)
                self.served += 1

    def _serve(self, connection: socket.socket) -> None:
        if self._step == "accept":
            return
        request = b""
        while not request.endswith(b"\r\n\r\n"):
            request += connection.recv(4096)
        if self._step == "request":
            return
        if self._step.startswith("http_"):
            status = self._step.removeprefix("http_")
            connection.sendall(f"HTTP/1.1 {status} No\r\nContent-Length: 2\r\n\r\nno".encode())
            return
        if self._step == "no_http":
            connection.sendall(b"220 mail.example.com ESMTP\r\n")
            return
        key = next(line for line in request.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key"))
        digest = hashlib.sha1(key.split(b": ")[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
        answer = (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + base64.b64encode(digest) + b"\r\n\r\n"
        )
        if self._step == "half_answer":
            connection.sendall(answer[:60])
            return
        connection.sendall(answer)
        for message in AFTER_UPGRADE[self._step]:
            if message == "?":
                connection.recv(4096)  # whatever the host says next
            else:
                connection.sendall(_frame(message.encode()))


def _frame(text: bytes) -> bytes:
    length = bytes([len(text)]) if len(text) < 126 else bytes([126]) + struct.pack("!H", len(text))
    return b"\x81" + length + text
