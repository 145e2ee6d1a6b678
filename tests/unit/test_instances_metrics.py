"""The line on which a server's metrics are read, against servers that answer in odd ways."""

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Thread

import pytest

from solarhost.instances.metrics import Line, NoAnswer

Serve = Callable[..., int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Answers each request on one connection with the next list of pieces, then closes it."""
    listener = socket.create_server(("127.0.0.1", 0))
    asked: list[bytes] = []

    def answer(*answers: list[bytes]) -> int:
        def run() -> None:
            with suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    for pieces in answers:
                        asked.append(connection.recv(65536))
                        for piece in pieces:
                            connection.sendall(piece)

        Thread(target=run, daemon=True).start()
        return int(listener.getsockname()[1])

    yield answer
    listener.close()
    assert all(b"Authorization: Bearer k\r\n" in request for request in asked)


def test_answers_are_read_whole_however_they_arrive(serve: Serve) -> None:
    port = serve(
        [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"],
        [b"HTTP/1.1 200 OK\r\ncontent-le", b"ngth:  3\r\n", b"\r\n", b"a", b"bc"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"],
    )
    line = Line("0.0.0.0", port, "k")
    assert [line.ask() for _ in range(3)] == [b"hello", b"abc", b""]
    with pytest.raises((NoAnswer, OSError)):
        line.ask()
    line.close()


@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\n{}"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"],
        [b"SSH-2.0-x\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"],
        [],
    ],
)
def test_what_is_no_answer_is_told(serve: Serve, pieces: list[bytes]) -> None:
    line = Line("127.0.0.1", serve(pieces), "k")
    with pytest.raises((NoAnswer, OSError)):
        line.ask()
    line.close()
