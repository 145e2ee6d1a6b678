"""Fixtures for the tests of resources, on made-up devices."""

import time

import pytest

from solarhost.problems import Problems
from solarhost.resources.service import Resources
from solarhost.settings import Settings
from tests.resources_fakes import TWO_GPUS, FakeJob


@pytest.fixture
def jobs() -> dict[str, FakeJob]:
    """The jobs that there are, by id."""
    return {}


@pytest.fixture
def make_resources(jobs, tmp_path):
    """Resources with these devices, started; closed at the end of the test."""
    made = []

    def make(gpus, vram_release_timeout_s=0.0):
        settings = Settings(
            gpu_telemetry_override=gpus, models_dir=tmp_path, vram_release_timeout_s=vram_release_timeout_s
        )
        resources = Resources(settings, Problems(), jobs.get)
        made.append(resources)
        resources.start()
        return resources

    yield make
    for resources in made:
        resources.close(time.monotonic() + 5)


@pytest.fixture
def two_gpus(make_resources):
    return make_resources(TWO_GPUS)
