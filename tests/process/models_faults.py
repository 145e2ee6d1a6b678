"""Faults that the loopback sources put into their answers, and bodies to serve."""

import hashlib
import random
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any

CHUNK = 1 << 16


class Content:
    """The bytes of one file; large ones are never held in memory."""

    def __init__(self, data: bytes | None = None, zeros: int = 0):
        self._data = data
        self.size = len(data) if data is not None else zeros
        self.sha256 = self._hash(hashlib.sha256())

    @cached_property
    def git(self) -> str:
        """Its id as a git blob."""
        return self._hash(hashlib.sha1(b"blob %d\0" % self.size))

    def read(self, start: int, end: int) -> Iterator[bytes]:
        while start < end:
            stop = min(start + CHUNK, end)
            yield self._data[start:stop] if self._data is not None else bytes(stop - start)
            start = stop

    def _hash(self, hasher: Any) -> str:
        for piece in self.read(0, self.size):
            hasher.update(piece)
        return str(hasher.hexdigest())


def noise(size: int, seed: int = 0) -> Content:
    return Content(random.Random(seed).randbytes(size))


@dataclass
class Fault:
    """What happens to the next `times` requests whose path holds `path`."""

    path: str
    times: int = 1
    status: int | None = None  # answer this and no body
    headers: dict[str, str] = field(default_factory=dict)
    stall_at: int | None = None  # send so many bytes of the body, then nothing
    reset_at: int | None = None  # send so many, then reset the connection
    truncate_at: int | None = None  # send so many, then close as if that were all
    flip_at: int | None = None  # change this byte of the file
    ignore_range: bool = False
    bytes_per_s: float | None = None


@dataclass
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    sent: int = 0  # bytes of the body


class Faults:
    """The faults of one server and what it saw. Shared by its request threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pending: list[Fault] = []
        self.seen: list[Seen] = []
        self.over = Event()  # ends stalled answers when the server goes

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._pending.append(fault)

    def clear(self) -> None:
        with self._lock:
            self._pending.clear()
            self.seen.clear()

    def take(self, path: str) -> Fault | None:
        with self._lock:
            for fault in self._pending:
                if fault.path in path and fault.times:
                    fault.times -= 1
                    return fault
        return None

    def note(self, seen: Seen) -> Seen:
        with self._lock:
            self.seen.append(seen)
        return seen

    def requests(self, part: str = "", method: str = "GET") -> list[Seen]:
        with self._lock:
            return [seen for seen in self.seen if part in seen.path and seen.method == method]

    def sent(self) -> int:
        with self._lock:
            return sum(seen.sent for seen in self.seen)


class Handler(BaseHTTPRequestHandler):
    """Requests of a loopback source; `answer` is the server's own."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_GET(self) -> None:
        self._handle()

    def do_HEAD(self) -> None:
        self._handle()

    def _handle(self) -> None:
        faults = self.server.faults
        self.seen = faults.note(
            Seen(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
        )
        self.fault = faults.take(self.path) or Fault("")
        try:
            if self.fault.status:
                self.reply(self.fault.status, self.fault.headers)
            else:
                self.server.answer(self)
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def reply(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.fault.stall_at is not None:
            self._stall()
            self.close_connection = True
        elif self.command != "HEAD":
            self.wfile.write(body)

    def send_content(self, content: Content, headers: dict[str, str]) -> None:
        """200 or 206, with the fault of this request."""
        start, end = 0, content.size
        asked = None if self.fault.ignore_range else self.headers.get("Range")
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) + 1 if last else content.size, content.size)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{content.size}")
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        if self.command != "HEAD":
            self._send_body(content, start, end)

    def _send_body(self, content: Content, start: int, end: int) -> None:
        fault = self.fault
        for stop in (fault.stall_at, fault.reset_at, fault.truncate_at):
            if stop is not None:
                end = min(end, start + stop)
        position = start
        for clean in content.read(start, end):
            piece = clean
            if fault.flip_at is not None and position <= fault.flip_at < position + len(clean):
                at = fault.flip_at - position
                piece = clean[:at] + bytes([clean[at] ^ 1]) + clean[at + 1 :]
            self.wfile.write(piece)
            position += len(piece)
            self.seen.sent += len(piece)
            if fault.bytes_per_s:
                self.server.faults.over.wait(len(piece) / fault.bytes_per_s)
        if fault.stall_at is not None:
            self._stall()
        if fault.reset_at is not None:
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if any(stop is not None for stop in (fault.stall_at, fault.reset_at, fault.truncate_at)):
            self.close_connection = True
            self.connection.close()

    def _stall(self) -> None:
        """Say nothing until the peer gives up."""
        self.connection.settimeout(0.1)
        while not self.server.faults.over.is_set():
            try:
                if not self.connection.recv(1):
                    return
            except TimeoutError:
                continue

    def log_message(self, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    """A loopback server with faults; subclasses say what it serves."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, context: Any = None):
        self.faults = Faults()
        super().__init__(("127.0.0.1", 0), Handler)
        self._context = context
        self.port = self.server_address[1]
        self._thread = Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def answer(self, handler: Handler) -> None:
        raise NotImplementedError

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self._context:  # in the request's own thread, since a handshake takes its time
            request = self._context.wrap_socket(request, server_side=True)
        super().finish_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that broke off

    def end(self) -> None:
        self.faults.over.set()
        self.shutdown()
        self.server_close()
        self._thread.join(10)


def wait_for(condition: Any, timeout_s: float = 20.0) -> Any:
    """The first true value of `condition()`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return value
