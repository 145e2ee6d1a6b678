"""What is really used: by files, processes and cgroups."""

import os
import subprocess
import sys
import time

import pytest

from solarhost.resources import processes
from solarhost.resources.override import OverrideGpus
from solarhost.resources.readings import GpuReading
from solarhost.resources.sampler import Sampler
from solarhost.resources.telemetry import Telemetry, Workload, folder_size

MIB = 1024**2


@pytest.fixture
def family():
    """A shell, and its child that holds 64 MiB."""
    program = "import sys, time; held = bytearray(64 * 1024**2); print('ready', flush=True); time.sleep(600)"
    with subprocess.Popen(
        ["sh", "-c", f'{sys.executable} -c "{program}" & echo $!; wait'],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shell:
        child = int(shell.stdout.readline())
        assert shell.stdout.readline() == "ready\n"
        yield shell.pid, child
        os.killpg(shell.pid, 9)


def test_a_folder_is_as_big_as_its_files_and_links_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes(os.urandom(5 * MIB))
    folder = tmp_path / "job"
    (folder / "output" / "deep").mkdir(parents=True)
    (folder / "output" / "deep" / "weights").write_bytes(os.urandom(3 * MIB))
    (folder / "log").write_bytes(os.urandom(1 * MIB))
    (folder / "link").symlink_to(outside)
    (folder / "root").symlink_to("/usr", target_is_directory=True)
    assert 4 * MIB <= folder_size(folder) < 4.5 * MIB
    assert folder_size(tmp_path / "missing") == 0


def test_the_use_of_workspaces_is_read_by_entry(tmp_path):
    (tmp_path / "file").write_bytes(os.urandom(2 * MIB))
    workload = Workload("res-1", frozenset(), in_container=True, workspace=tmp_path)
    telemetry = Telemetry(OverrideGpus([]), tmp_path / "not yet made", lambda: [workload])
    telemetry.start()
    try:
        deadline = time.monotonic() + 10
        while not telemetry.readings().disk_use:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert 2 * MIB <= telemetry.readings().disk_use["res-1"] < 2.5 * MIB
    finally:
        telemetry.close(time.monotonic() + 5)


def test_a_process_is_known_by_its_ancestors_and_its_session(family):
    shell, child = family
    assert {child, shell, os.getpid()} <= processes.lineage(child)
    assert processes.name(shell) == "sh"


def test_a_process_is_still_known_by_its_session_when_its_parent_is_gone(family):
    shell, child = family
    os.kill(shell, 9)
    deadline = time.monotonic() + 10
    while os.getpid() in processes.lineage(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert shell in processes.lineage(child)


def test_ram_of_a_family_counts_the_children(family):
    shell, _ = family
    assert 64 * MIB < processes.tree_ram([shell], processes.Families()) < 200 * MIB


def test_a_look_at_all_families_is_taken_once(family):
    families = processes.Families()
    shell, child = family
    assert {shell, child} <= families.members([os.getpid()])
    with subprocess.Popen(["sleep", "60"]) as later:
        assert later.pid not in families.members([os.getpid()])
        later.kill()


def test_of_what_is_gone_nothing_is_known():
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert processes.lineage(process.pid) == {process.pid}
    assert processes.name(process.pid) is None
    assert processes.tree_ram([process.pid], processes.Families()) is None
    assert processes.container_ram([], processes.Families()) is None


@pytest.mark.parametrize(
    ("line", "files"),
    [
        (
            "0::/docker/abc",
            {
                "docker/abc/memory.current": "1000",
                "docker/abc/memory.stat": "anon 600\ninactive_file 300\n",
            },
        ),
        (
            "9:cpu,memory:/docker/abc\n1:name=systemd:/docker/abc",
            {
                "memory/docker/abc/memory.usage_in_bytes": "1000",
                "memory/docker/abc/memory.stat": "cache 300\nrss 700\n",
            },
        ),
    ],
)
def test_ram_of_a_container_is_without_page_cache(monkeypatch, tmp_path, line, files):
    """Both layouts of cgroups, laid out as the kernel does; a machine has only one of them."""
    (tmp_path / "proc" / "42").mkdir(parents=True)
    (tmp_path / "proc" / "42" / "cgroup").write_text(line + "\n")
    for name, content in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.setattr(processes, "PROC", tmp_path / "proc")
    monkeypatch.setattr(processes, "CGROUPS", tmp_path / "cgroup")
    assert processes.container_ram([42], processes.Families()) == 700


def test_a_container_whose_cgroup_is_out_of_sight_is_measured_by_its_processes(monkeypatch, tmp_path, family):
    monkeypatch.setattr(processes, "CGROUPS", tmp_path)
    assert processes.container_ram([family[0]], processes.Families()) > 64 * MIB


def test_a_reading_that_fails_leaves_the_last_one_to_grow_old(caplog):
    readings = iter([GpuReading()])
    sampler = Sampler("loop-test", 0.01, lambda: next(readings))
    sampler.start()
    assert sampler.wait_for_sample(5)
    assert not sampler.fresh(0.1)
    assert sampler.latest.value == GpuReading()
    assert sampler.latest.age_s >= 0.1
    assert "loop-test failed, tried again" in caplog.text
    sampler.stop()
    sampler.join(5)
    assert not sampler.is_alive()
