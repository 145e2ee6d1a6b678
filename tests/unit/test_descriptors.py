"""While this process may open no further file: what fails holds nothing afterwards."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask

from solarhost.errors import Unavailable
from solarhost.logs.growth import GrowthWatch
from solarhost.places import Places
from solarhost.settings import Settings
from solarhost.streams import Streams

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Version": "13",
}


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@contextmanager
def left(free: int) -> Iterator[None]:
    """Within the block so many files can be opened."""
    before = getrlimit(RLIMIT_NOFILE)
    held: list[int] = []
    try:
        setrlimit(RLIMIT_NOFILE, (descriptors() + 64, before[1]))
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
        for _ in range(free):
            os.close(held.pop())
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        setrlimit(RLIMIT_NOFILE, before)


@pytest.mark.parametrize("free", [0, 1, 2])
def test_a_watch_of_a_file_holds_nothing_when_it_could_not_be_made(tmp_path: Path, free: int) -> None:
    path = tmp_path / "log"
    path.touch()
    with path.open("rb") as file:
        before = descriptors()
        with left(free), suppress(OSError):
            GrowthWatch(file.fileno(), path).close()
        assert descriptors() == before


def test_a_stream_that_could_not_be_opened_is_not_counted() -> None:
    host: Any = SimpleNamespace(settings=Settings(), places=Places())
    streams = Streams(host)
    ours, theirs = socket.socketpair()
    with ours, theirs, Flask(__name__).test_request_context(headers=UPGRADE) as context:
        context.request.environ["gunicorn.socket"] = SimpleNamespace(raw=ours)
        with left(0), pytest.raises(Unavailable, match="Too many open files"):
            streams.admit()
        streams.leave(None)
        assert (streams.open, host.places.held) == (0, 0)
        assert streams.admit() is None
        assert (streams.open, host.places.held) == (1, 1)
        streams.leave(None)
    assert (streams.open, host.places.held) == (0, 0)
