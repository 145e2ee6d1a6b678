"""While this process may open no further file: what fails holds nothing afterwards."""

import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask

from solarhost.errors import Unavailable
from solarhost.instances import census
from solarhost.logs.growth import GrowthWatch
from solarhost.places import Places
from solarhost.settings import Settings
from solarhost.streams import Streams
from tests.descriptors import descriptors, left

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Version": "13",
}


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


def test_nobody_is_taken_for_dead_because_there_is_no_descriptor_to_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(census, "PATIENCE_S", 0.1)
    looks = (lambda: census.lives(os.getpid()), lambda: census.variable(os.getpid(), "PATH"), census.pids)
    for look in looks:
        with left(0), pytest.raises(census.Unseen, match="Too many open files"):
            look()
        assert look()
    monkeypatch.setattr(census, "PATIENCE_S", 20.0)
    seen: list[bool] = []
    late = Thread(target=lambda: seen.append(census.lives(os.getpid())))
    with left(0):
        late.start()
        time.sleep(2 * census.RETRY_S)  # it looks in vain; were it not yet at it, this would pass too
        assert seen == []
    late.join(20)
    assert seen == [True]
