"""What is promised, on made-up devices: accounting, choice of devices, refusals, expiry, charges."""

import os
import time
from datetime import timedelta
from threading import Event, Timer

import pytest

from solarhost.errors import InvalidRequest, NotFound
from solarhost.problems import Problems
from solarhost.resources.allocation import Need
from solarhost.resources.errors import (
    CapacityExceeded,
    GpuShort,
    ReservationRunning,
    StartCancelled,
    TelemetryUnavailable,
    UnknownGpu,
)
from solarhost.resources.readings import GIB
from solarhost.resources.service import Ask, Resources
from solarhost.settings import Settings
from solarhost.times import now
from tests.resources_fakes import TWO_GPUS, FakeJob

pytest_plugins = ["tests.resources_fixtures"]


def ask(job_id="job-1", *, expires_at=None, vram=0.0, ram=0.0, disk=0.0, **need):
    sizes = {"vram": round(vram * GIB), "ram": round(ram * GIB), "disk": round(disk * GIB)}
    return Ask(job_id=job_id, expires_at=expires_at, need=Need(**sizes, **need))


def test_before_the_first_reading_nothing_is_known_and_nothing_promised():
    resources = Resources(Settings(), Problems(), lambda _: None)
    shown = resources.snapshot()
    assert shown["telemetry"]["gpu"] == "unreadable"
    assert (shown["ram"]["total_gb"], shown["disk"]["available_gb"]) == (None, None)
    assert (resources.gpu_count(), resources.health_memory()) == (None, [])
    for dimension in ("vram", "ram", "disk"):
        with pytest.raises(TelemetryUnavailable):
            resources.reserve(ask(**{dimension: 1}))


def test_a_pending_reservation_counts_in_full(two_gpus):
    before = two_gpus.snapshot()
    made = two_gpus.reserve(ask(vram=16, ram=0.5, disk=1))
    after = two_gpus.snapshot()
    assert made["status"] == "pending"
    assert made["id"].startswith("res-")
    assert made["actual_vram_gb"] is None
    assert after["reservations"] == [made]
    assert after["vram"] == {
        "total_gb": 48.0,
        "system_used_gb": 8.0,
        "reserved_headroom_gb": 16.0,
        "reported_used_gb": 24.0,
        "available_gb": 24.0,
    }
    assert after["ram"]["reserved_headroom_gb"] == 0.5
    assert after["disk"]["reserved_headroom_gb"] == 1.0
    assert before["vram"]["available_gb"] == 40.0


def test_the_gpu_with_most_room_after_headroom_is_chosen_and_the_lowest_index_among_equals(two_gpus):
    assert two_gpus.reserve(ask(vram=6))["gpu_ids"] == [1]  # 16 and 24 free
    assert two_gpus.reserve(ask(vram=2))["gpu_ids"] == [1]  # 16 and 18
    assert two_gpus.reserve(ask(vram=1))["gpu_ids"] == [0]  # 16 and 16
    assert [gpu["available_gb"] for gpu in two_gpus.snapshot()["gpus"]] == [15.0, 16.0]


def test_vram_is_charged_on_each_gpu(two_gpus):
    made = two_gpus.reserve(ask(vram=10, gpu_count=2))
    assert sorted(made["gpu_ids"]) == [0, 1]
    assert two_gpus.snapshot()["vram"]["reserved_headroom_gb"] == 20.0


def test_a_refusal_names_the_device_that_is_short(two_gpus):
    with pytest.raises(CapacityExceeded) as caught:
        two_gpus.reserve(ask(vram=20, gpu_count=2))
    assert caught.value.body() == {
        "error": "capacity_exceeded",
        "detail": "GPU 0 (Small): 20.0 GB vram requested, 16.0 GB available",
        "dimension": "vram",
        "requested_gb": 20.0,
        "available_gb": 16.0,
        "device_index": 0,
    }
    assert two_gpus.snapshot()["reservations"] == []


@pytest.mark.parametrize("dimension", ["ram", "disk"])
def test_a_refusal_names_the_dimension(two_gpus, dimension):
    with pytest.raises(CapacityExceeded) as caught:
        two_gpus.reserve(ask(**{dimension: 900_000}))
    assert caught.value.dimension == dimension
    assert caught.value.body()["available_gb"] == two_gpus.snapshot()[dimension]["available_gb"]


def test_what_is_shown_as_available_can_be_had(make_resources):
    resources = make_resources([{"index": 0, "name": "Odd", "total_gb": 24.0, "used_gb": 3.3349}])
    shown = resources.snapshot()["gpus"][0]["available_gb"]
    assert resources.reserve(ask(vram=shown))["vram_gb"] == shown


def test_more_gpus_than_there_are_is_refused(two_gpus):
    with pytest.raises(CapacityExceeded, match="3 GPUs requested, 2 of 2 can be used"):
        two_gpus.reserve(ask(vram=1, gpu_count=3))


def test_a_gpu_that_is_not_there_is_refused_by_its_name(two_gpus):
    with pytest.raises(UnknownGpu, match="no GPU 7 here, the GPUs are: 0, 1") as caught:
        two_gpus.reserve(ask(vram=1, gpu_ids=[7]))
    assert caught.value.body()["device_index"] == 7


def test_without_a_gpu_vram_is_ram(make_resources):
    resources = make_resources([])
    assert resources.gpu_count() == 0
    made = resources.reserve(ask(vram=0.25, ram=0.25, gpu_count=2))
    shown = resources.snapshot()
    assert (shown["memory_type"], shown["vram"], shown["gpus"]) == ("RAM", None, [])
    assert shown["ram"]["reserved_headroom_gb"] == 0.5
    assert made["vram_gb"] == 0.25


def test_a_reservation_is_running_while_its_job_is_and_can_not_be_released_then(two_gpus, jobs):
    made = two_gpus.reserve(ask("train"))
    jobs["train"] = FakeJob()
    with pytest.raises(ReservationRunning):
        two_gpus.release(made["id"])
    two_gpus.reserve(ask("other"))  # a change makes the snapshot anew
    assert [entry["status"] for entry in two_gpus.snapshot()["reservations"]] == ["running", "pending"]
    jobs["train"] = FakeJob(running=False)
    two_gpus.release(made["id"])
    with pytest.raises(NotFound):
        two_gpus.release(made["id"])


def test_an_expired_reservation_goes_but_not_under_a_running_job(two_gpus, jobs):
    soon = now() + timedelta(seconds=0.05)
    two_gpus.reserve(ask("idle", vram=1, expires_at=soon))
    two_gpus.reserve(ask("busy", vram=2, expires_at=soon))
    jobs["busy"] = FakeJob()
    wait_until(lambda: now() > soon)
    two_gpus.reserve(ask("later"))
    assert [entry["job_id"] for entry in two_gpus.snapshot()["reservations"]] == ["busy", "later"]
    del jobs["busy"]
    wait_until(lambda: [entry["job_id"] for entry in two_gpus.snapshot()["reservations"]] == ["later"])
    assert two_gpus.snapshot()["vram"]["reserved_headroom_gb"] == 0


def test_an_expiry_in_the_past_is_refused(two_gpus):
    with pytest.raises(InvalidRequest, match="has passed"):
        two_gpus.reserve(ask(expires_at=now() - timedelta(seconds=1)))


def test_an_instance_is_charged_until_released_and_releasing_twice_gives_back_once(two_gpus):
    charges = two_gpus.charges
    assert charges.admit("a", None, 20.0, Event()) == [1]
    assert charges.admit("b", [0], 10.0, Event()) == [0]
    assert two_gpus.snapshot()["vram"]["reserved_headroom_gb"] == 30.0
    charges.release("a")
    charges.release("a")
    charges.release("never started")
    shown = two_gpus.snapshot()
    assert shown["vram"]["reserved_headroom_gb"] == 10.0
    assert [charge["instance_id"] for charge in shown["instance_charges"]] == ["b"]


def test_a_start_tried_again_is_charged_once(two_gpus):
    for _ in range(3):
        two_gpus.charges.admit("a", [1], 20.0, Event())
    assert two_gpus.snapshot()["vram"]["reserved_headroom_gb"] == 20.0


def test_an_instance_without_wishes_is_not_charged(two_gpus):
    assert two_gpus.charges.admit("a", None, None, Event()) == []
    assert two_gpus.charges.admit("b", [1, 0], None, Event()) == [1, 0]
    assert two_gpus.snapshot()["vram"]["reserved_headroom_gb"] == 0


def test_a_start_that_does_not_fit_says_what_is_free_and_promised(two_gpus):
    two_gpus.reserve(ask(vram=10, gpu_ids=[1]))
    with pytest.raises(GpuShort) as caught:
        two_gpus.charges.admit("a", [1], 20.0, Event())
    assert str(caught.value).startswith(
        "GPU 1 (Big): 24.0 GB free, 10.0 GB of it promised to others, 20.0 GB needed"
    )
    assert two_gpus.snapshot()["instance_charges"] == []


def test_a_start_waits_for_a_charge_that_is_given_back_soon(make_resources):
    resources = make_resources(TWO_GPUS, vram_release_timeout_s=20)
    resources.charges.admit("old", [1], 20.0, Event())
    waiting = Event()

    class Releases(Event):
        def wait(self, timeout=None):
            if not waiting.is_set():
                waiting.set()
                resources.charges.release("old")
            return super().wait(timeout)

    assert resources.charges.admit("new", [1], 20.0, Releases()) == [1]
    assert waiting.is_set()


def test_a_stop_ends_the_wait_of_a_start(make_resources):
    resources = make_resources(TWO_GPUS, vram_release_timeout_s=600)
    resources.charges.admit("old", [1], 20.0, Event())
    cancelled = Event()
    Timer(0.1, cancelled.set).start()
    with pytest.raises(StartCancelled):
        resources.charges.admit("new", [1], 20.0, cancelled)


def test_an_adopted_instance_is_charged_without_a_check(two_gpus):
    two_gpus.charges.adopt("a", 4242, [1], 23.0)
    two_gpus.charges.adopt("b", 4243, [1], 23.0)
    gpu = two_gpus.snapshot()["gpus"][1]
    assert (gpu["reserved_headroom_gb"], gpu["available_gb"]) == (46.0, 0.0)
    with pytest.raises(CapacityExceeded):
        two_gpus.reserve(ask(vram=1, gpu_ids=[1]))


def test_the_summary_for_control_has_the_same_figures(two_gpus):
    two_gpus.reserve(ask(vram=4))
    shown = two_gpus.snapshot()
    assert two_gpus.reservations() == {
        "active_count": 1,
        "vram": shown["vram"],
        "ram": shown["ram"],
        "disk": shown["disk"],
    }


def test_memory_and_disk_are_as_measured_whatever_is_promised(two_gpus):
    two_gpus.reserve(ask(vram=4))
    assert two_gpus.memory() == {
        "total_gb": 48.0,
        "used_gb": 8.0,
        "available_gb": 40.0,
        "percent": 16.67,
        "memory_type": "VRAM",
    }
    assert [pool["memory_type"] for pool in two_gpus.health_memory()] == ["VRAM", "RAM"]
    assert two_gpus.disk()["available_gb"] > 0
    assert (two_gpus.gpu_type, two_gpus.gpu_count()) == ("nvidia_cuda", 2)


def wait_until(condition, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_an_adopted_instance_that_was_promised_nothing_is_charged_nothing(two_gpus):
    two_gpus.charges.adopt("a", os.getpid(), None, None)
    assert two_gpus.snapshot()["gpus"][1]["reserved_headroom_gb"] == 0
    assert not two_gpus.charges.release("a")
