"""Calls to the engine that last as long as a container or a download.

docker-py's calls can't be interrupted from another thread and give up after a silence. Such a call
therefore has a connection of its own here: it may be silent for as long as it likes, and `cut` ends
it at once. HTTP/1.0 keeps Docker from chunking its answer, so what follows the header is the body
as it is, until the connection ends.
"""

import json
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from threading import Lock

from solarhost.containers.errors import CallCut, ContainerGone, EngineAway, EngineRefused
from solarhost.errors import SolarHostError
from solarhost.shortages import why

CHUNK_BYTES = 256 * 1024
HEADER_LIMIT = 64 * 1024
CONNECT_S = 10.0
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")


class LongCall:
    """One request to the engine, sent; `await_answer`, then `read` its body, by one thread.

    Raises:
        EngineAway: no engine there.
    """

    def __init__(
        self, address: str, method: str, target: str, *, doing: str, headers: Mapping[str, str] | None = None
    ):
        self._address = address
        self._doing = doing
        self._lock = Lock()  # guards _was_cut, and closing against cutting: a closed number may be reused
        self._was_cut = False
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise EngineAway(address, why(error)) from error
        self._head = b""
        lines = [f"{method} {target} HTTP/1.0", "Host: docker", "Content-Length: 0"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        try:
            self._socket.settimeout(CONNECT_S)
            self._socket.connect(address.removeprefix("unix://"))
            self._socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        except OSError as error:
            self.close()
            raise EngineAway(address, why(error)) from error

    def await_answer(self, timeout_s: float | None) -> None:
        """Wait for the answer's header; None waits as long as it takes. On an error the call is closed.

        Raises:
            EngineAway: the engine ended the connection, or did not answer in time.
            ContainerGone, EngineRefused: it answered with an error.
            CallCut: `cut` was called.
        """
        try:
            self._socket.settimeout(timeout_s)
            status = self._read_header()
            if status >= 400:
                kind = ContainerGone if status == 404 else EngineRefused
                raise kind(self._doing, self._read_error())
            self._socket.settimeout(None)
        except OSError as error:
            self.close()
            raise EngineAway(self._address, why(error)) from error
        except SolarHostError:
            self.close()
            raise

    def read(self) -> bytes:
        """The next bytes of the body, b"" at its end (also when the engine or the connection died).

        Raises:
            CallCut: `cut` was called.
        """
        if self._head:
            head, self._head = self._head, b""
            return head
        data = b""
        with suppress(OSError):  # a reset is an end like another: the reader checks what it got
            data = self._socket.recv(CHUNK_BYTES)
        if not data and self._was_cut:
            raise CallCut("the call was cut")
        return data

    def cut(self) -> None:
        """End it from another thread: a `read` that waits raises `CallCut`."""
        with self._lock:
            self._was_cut = True
            with suppress(OSError):  # it may have ended by itself
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._lock:
            self._socket.close()

    def _read_header(self) -> int:
        while b"\r\n\r\n" not in self._head:
            data = self._socket.recv(CHUNK_BYTES)
            if self._was_cut:
                raise CallCut("the call was cut")
            if not data or len(self._head) > HEADER_LIMIT:
                raise EngineAway(self._address, "it ended the connection without an answer")
            self._head += data
        header, _, self._head = self._head.partition(b"\r\n\r\n")
        status = _STATUS.match(header)
        if not status:
            raise EngineAway(self._address, "what answers there speaks no HTTP")
        return int(status[1])

    def _read_error(self) -> str:
        body = self._head
        while len(body) < HEADER_LIMIT and (data := self._socket.recv(CHUNK_BYTES)):
            body += data
        return engine_message(body)


def engine_message(body: bytes) -> str:
    """The text in an error body of the engine, `{"message": text}`, or the body where it is none."""
    text = body.decode("utf-8", "replace").strip()
    try:
        return str(json.loads(text)["message"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return text
