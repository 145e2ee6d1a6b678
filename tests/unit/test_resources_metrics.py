"""Gauges, as Prometheus reads them."""

from solarhost.resources.allocation import Need
from solarhost.resources.metrics import gauges
from solarhost.resources.readings import GIB
from solarhost.resources.service import Ask

pytest_plugins = ["tests.resources_fixtures"]


def samples(resources):
    """Values by name and label values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in gauges(resources.snapshot())
        for sample in family.samples
    }


def test_gauges_show_every_gpu_and_dimension(two_gpus):
    two_gpus.reserve(Ask(job_id="job", need=Need(vram=10 * GIB)))
    shown = samples(two_gpus)
    assert shown["solarhost_gpu_bytes", "1", "", "Big", "available"] == 14 * GIB
    assert shown["solarhost_resource_bytes", "vram", "used"] == 8 * GIB
    assert shown["solarhost_resource_bytes", "vram", "headroom"] == 10 * GIB
    assert shown["solarhost_resource_bytes", "ram", "total"] > 0
    assert shown["solarhost_reservations", "pending"] == 1
    assert shown["solarhost_reservations", "running"] == 0
    assert shown["solarhost_gpu_telemetry_up",] == 1
    assert ("solarhost_telemetry_age_seconds", "gpu") in shown


def test_without_a_gpu_there_are_no_gauges_of_gpus(make_resources):
    names = {key[0] for key in samples(make_resources([]))}
    assert "solarhost_resource_bytes" in names
    assert not names & {"solarhost_gpu_bytes", "solarhost_gpu_telemetry_up"}
