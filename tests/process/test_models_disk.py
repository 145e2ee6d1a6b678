"""Pulls and the disk that they fill."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.models_faults import Content, noise, wait_for
from tests.process.models_hub import Hub
from tests.process.models_puller import MakePuller

MIB = 1 << 20
pytest_plugins = ["tests.models_fixtures"]


def test_a_pull_that_does_not_fit_is_refused_before_its_first_byte(hub: Hub, make: MakePuller) -> None:
    uri = hub.add("org/m", model__gguf=noise(1000))
    error = make(min_free_disk_gb=1e6).failure(uri)
    assert (error.code, error.status) == ("insufficient_storage", 507)
    assert "MIN_FREE_DISK_GB" in str(error)
    assert hub.storage.faults.seen == []


def test_disk_promised_to_one_pull_is_not_given_to_another(hub: Hub, make: MakePuller) -> None:
    probe = os.statvfs("/tmp")
    half = int(probe.f_bavail * probe.f_frsize * 0.6)
    puller = make()
    first = hub.add("org/a", model__gguf=Content(b""))
    hub.repos["org/a"]["model.gguf"].size = half  # it never comes that far
    second = hub.add("org/b", other__gguf=Content(b""))
    hub.repos["org/b"]["other.gguf"].size = half
    hub.repos["org/a"]["model.gguf"].sha256 = "a" * 64
    hub.repos["org/b"]["other.gguf"].sha256 = "b" * 64
    hub.fault("model.gguf", stall_at=0)
    thread, _ = puller.in_background(first)
    wait_for(lambda: hub.storage.faults.requests("model.gguf"))
    error = puller.failure(second)
    assert error.code == "insufficient_storage"
    assert "promised to other pulls" in str(error)
    puller.store.cancel(puller.store.pulls()[0]["id"])
    thread.join()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    assert os.system(f"mount -t tmpfs -o size=8m none {folder}") == 0
    yield folder
    os.system(f"umount {folder}")


def test_a_disk_that_fills_up_meanwhile_ends_the_pull(hub: Hub, make: MakePuller, small_disk: Path) -> None:
    puller = make(models_dir=small_disk / "models")
    uri = hub.add("org/m", model__gguf=noise(6 * MIB))
    hub.fault("model.gguf", bytes_per_s=4.0 * MIB)
    thread, outcome = puller.in_background(uri)
    wait_for(lambda: hub.storage.faults.sent() > MIB)
    ballast = small_disk / "ballast"
    try:
        ballast.write_bytes(bytes(8 * MIB))
    except OSError as error:
        assert error.errno == errno.ENOSPC
    thread.join()
    assert (outcome[0].code, outcome[0].status) == ("insufficient_storage", 507)
    assert list(puller.folder.iterdir()) == []
    ballast.unlink()
    hub.storage.faults.clear()
    puller.pull(uri)


def test_the_disk_is_watched_while_a_pull_runs(hub: Hub, make: MakePuller, small_disk: Path) -> None:
    puller = make(models_dir=small_disk / "models", min_free_disk_gb=2 / 1024)
    uri = hub.add("org/m", model__gguf=noise(3 * MIB))
    hub.fault("model.gguf", bytes_per_s=float(MIB))
    thread, outcome = puller.in_background(uri)
    wait_for(lambda: hub.storage.faults.sent() > 0)
    (small_disk / "ballast").write_bytes(bytes(6 * MIB))
    thread.join()
    assert outcome[0].code == "insufficient_storage"
    assert list(puller.folder.iterdir()) == []
