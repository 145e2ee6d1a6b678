"""What a job really uses, on a real Docker engine."""

import time
from collections.abc import Iterator

import pytest

from solarhost.problems import Problems
from solarhost.resources.allocation import Need
from solarhost.resources.readings import GIB
from solarhost.resources.service import Ask, Resources
from solarhost.settings import Settings
from tests.agent import wait_until
from tests.jobs_fixtures import Jobs, definition, shell

# It holds 64 MiB, and has written and read a file of 96 MiB, which is page cache and not its own.
HOLD = (
    "head -c 100663296 /dev/zero > /workspace/output/file; cat /workspace/output/file > /dev/null;"
    "{ head -c 67108864 /dev/zero; sleep 600; } | tail -c 67108864"
)


@pytest.fixture
def resources(jobs: Jobs) -> Iterator[Resources]:
    settings = Settings(gpu_telemetry_override=[], models_dir=jobs.folder)
    resources = Resources(settings, Problems(), jobs.service.view)
    resources.start()
    yield resources
    resources.close(time.monotonic() + 5)


def test_a_running_job_is_charged_for_what_it_does_not_use_yet(jobs: Jobs, resources: Resources):
    made = resources.reserve(Ask(job_id="train", need=Need(ram=GIB, disk=GIB)))
    assert resources.snapshot()["ram"]["reserved_headroom_gb"] == 1.0
    jobs.service.submit(definition("train", shell("hold", HOLD)))

    def measured():
        (entry,) = resources.snapshot()["reservations"]
        return entry if (entry["actual_ram_gb"] or 0) > 0.05 and entry["actual_disk_gb"] else None

    try:
        entry = wait_until(measured, 60, "its use")
        shown = resources.snapshot()
    finally:
        jobs.service.cancel("train")
    assert entry["status"] == "running"
    assert 0.06 <= entry["actual_ram_gb"] <= 0.09
    assert 0.09 <= entry["actual_disk_gb"] <= 0.1
    assert 0.9 < shown["ram"]["reserved_headroom_gb"] < 0.95
    assert 0.9 <= shown["disk"]["reserved_headroom_gb"] < 0.92
    wait_until(lambda: resources.snapshot()["reservations"][0]["status"] == "pending", 30, "the end")
    resources.release(made["id"])
    assert resources.snapshot()["ram"]["reserved_headroom_gb"] == 0
