"""Fixtures of the tests of the link."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.control_host import KEY, Host
from tests.control_process import ControlProcess, wait_for

HostFactory = Callable[..., Host]
ControlFactory = Callable[..., ControlProcess]


@pytest.fixture(scope="module")
def control_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlProcess]:
    """One server for all tests that leave it running; it takes a second to start."""
    server = ControlProcess(tmp_path_factory.mktemp("control"), known_keys=())
    yield server
    server.kill()


@pytest.fixture
def make_control(control_server: ControlProcess) -> ControlFactory:
    """Gives the server as if it had just started."""

    def make(known_keys: tuple[str, ...] = (KEY,)) -> ControlProcess:
        if not control_server.is_running:
            control_server.start()
        return control_server.reset(known_keys)

    return make


@pytest.fixture
def make_host() -> Iterator[HostFactory]:
    """Makes hosts whose link is started; their threads have to be gone afterwards."""
    before = set(threading.enumerate())
    hosts: list[Host] = []

    def make(url: str, **settings: Any) -> Host:
        hosts.append(Host(url, **settings))
        hosts[-1].link.start()
        return hosts[-1]

    yield make
    for host in hosts:
        host.close()
    wait_for(lambda: set(threading.enumerate()) <= before, "the threads of the link end")
