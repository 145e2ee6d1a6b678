"""Stores to pull with, and a hub on loopback to pull from."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.process.models_hub import Hub
from tests.process.models_puller import MakePuller, Puller, workers


@pytest.fixture
def pullers(tmp_path: Path) -> Iterator[Callable[..., Puller]]:
    """Makes stores; keywords are settings. At the end no worker is left."""
    made: list[Puller] = []

    def build(**settings: Any) -> Puller:
        made.append(Puller(**({"models_dir": tmp_path / "models"} | settings)))
        return made[-1]

    yield build
    for puller in made:
        puller.store.close(time.monotonic() + 10)
    assert workers() == []


@pytest.fixture(scope="module")
def hub_server() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.end()


@pytest.fixture
def hub(hub_server: Hub) -> Iterator[Hub]:
    """Without models and faults of other tests."""
    yield hub_server
    hub_server.reset()


@pytest.fixture
def make(pullers: MakePuller, hub: Hub) -> MakePuller:
    """Makes stores that pull from the hub."""
    return partial(pullers, hf_endpoint=hub.url)


@pytest.fixture
def puller(make: MakePuller) -> Puller:
    return make()
