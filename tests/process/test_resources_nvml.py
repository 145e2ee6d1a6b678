"""GPUs through the real `pynvml`, against a scripted NVML library (and the real one, where there is one)."""

import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GIB = 1024**3
LOST, MISMATCH, NO_PERMISSION, NOT_SUPPORTED, NOT_LOADED, UNKNOWN = 15, 18, 4, 3, 9, 999


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """Folder with the scripted library."""
    folder = tmp_path_factory.mktemp("nvml")
    target = folder / "libnvidia-ml.so.1"
    subprocess.run(
        ["gcc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", target, HERE / "nvml_stub.c"],
        check=True,
    )
    return folder


class Machine:
    """One agent process on a scripted machine."""

    def __init__(self, library, folder):
        self._folder = folder
        self._environment = os.environ | {
            "LD_LIBRARY_PATH": str(library),
            "NVML_SCENE": str(folder / "scene"),
            "PYTHONPATH": str(HERE.parent.parent),
        }
        self._agent = None

    def scene(self, *lines):
        """What NVML answers from now on."""
        draft = self._folder / "draft"
        draft.write_text("\n".join(lines) + "\n")
        draft.replace(self._folder / "scene")

    def start(self, *lines):
        self.scene(*lines)
        self._agent = subprocess.Popen(
            [sys.executable, HERE / "resources_agent.py", self._folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._environment,
        )

    def ask(self, method, **arguments):
        answer = self.answer(method, **arguments)
        assert "result" in answer, answer
        return answer["result"]

    def answer(self, method, **arguments):
        self.order(method, **arguments)
        return self.next_answer()

    def order(self, method, **arguments):
        self._agent.stdin.write(json.dumps([method, arguments]) + "\n")
        self._agent.stdin.flush()

    def next_answer(self):
        return json.loads(self._agent.stdout.readline())

    def until(self, holds, method="snapshot"):
        """Ask until the answer is as it should be; readings come once a second."""
        deadline = time.monotonic() + 30
        while True:
            result = self.ask(method)
            if holds(result):
                return result
            assert time.monotonic() < deadline, result
            time.sleep(0.05)

    def calls(self):
        return (self._folder / "scene.calls").read_text().split()

    def close(self):
        """Ends the agent; it must do so by itself."""
        if self._agent and self._agent.poll() is None:
            self._agent.stdin.close()
            assert self._agent.wait(20) == 0
            self._agent.stdout.close()


@pytest.fixture
def machine(library, tmp_path):
    machine = Machine(library, tmp_path)
    yield machine
    machine.close()


@pytest.fixture
def child():
    """A process in a session of its own, as instances have."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process.pid
        process.kill()


def gpu(index, total, used, *, uuid=None, name="NVIDIA-X", status=0, mig=-1):
    return f"gpu {index} {uuid or f'GPU-{index}'} {name} {total * GIB} {int(used * GIB)} {status} {mig}"


def test_devices_are_read_and_nvml_is_initialised_once(machine):
    machine.start("count 2", gpu(0, 24, 4), gpu(1, 80, 0.5, name="NVIDIA-Y"))
    shown = machine.ask("snapshot")
    assert shown["telemetry"]["gpu"] == "ok"
    assert shown["gpus"][1] == {
        "index": 1,
        "uuid": "GPU-1",
        "name": "NVIDIA-Y",
        "memory_type": "VRAM",
        "total_gb": 80.0,
        "used_gb": 0.5,
        "reserved_headroom_gb": 0.0,
        "available_gb": 79.5,
        "mig_parent": None,
        "problem": None,
    }
    assert machine.ask("memory")["total_gb"] == 104.0
    assert machine.ask("kind") == ["nvidia_cuda", 2]
    machine.scene("count 2", gpu(0, 24, 5), gpu(1, 80, 0.5))
    machine.until(lambda shown: shown["gpus"][0]["used_gb"] == 5.0)
    assert machine.calls() == ["init"]


def test_no_driver_and_no_gpu_is_no_gpu(machine):
    machine.start(f"init {NOT_LOADED}")
    shown = machine.ask("snapshot")
    assert (shown["telemetry"]["gpu"], shown["vram"], shown["memory_type"]) == ("none", None, "RAM")
    assert machine.ask("kind") == ["cpu", 0]
    assert machine.ask("problems") == []


def test_a_version_mismatch_is_unreadable_and_refuses_gpu_work_but_nothing_else(machine):
    machine.start(f"init {MISMATCH}", "count 1", gpu(0, 24, 0))
    shown = machine.ask("snapshot")
    assert shown["telemetry"]["gpu"] == "unreadable"
    assert "driver/library version mismatch" in shown["telemetry"]["gpu_problem"]
    assert shown["vram"]["total_gb"] is None
    assert shown["vram"]["available_gb"] is None
    assert machine.answer("memory")["error"] == "Unavailable"
    assert [pool["memory_type"] for pool in machine.ask("health_memory")] == ["RAM"]
    assert machine.ask("kind") == ["nvidia_cuda", None]
    assert "version mismatch" in machine.ask("problems")[0]
    refused = machine.answer("reserve", vram=1)
    assert refused["error"] == "TelemetryUnavailable"
    assert "version mismatch" in refused["text"]
    assert machine.ask("reserve", ram=0.1)["status"] == "pending"
    assert machine.answer("admit", instance_id="a", vram_gb=1)["error"] == "GpuUnreadable"
    assert machine.ask("admit", instance_id="b", gpu_ids=[0], vram_gb=1) == [0]
    assert machine.ask("snapshot")["vram"]["reserved_headroom_gb"] == 1.0


def test_a_driver_that_goes_and_comes_back_keeps_reservations_and_charges(machine):
    machine.start("generation 1", "count 1", gpu(0, 24, 4))
    made = machine.ask("reserve", vram=2)
    machine.ask("admit", instance_id="a", vram_gb=3)
    machine.scene("generation 2", f"init {NOT_LOADED}", "count 1", gpu(0, 24, 4))
    gone = machine.until(lambda shown: shown["telemetry"]["gpu"] == "unreadable")
    assert gone["gpus"][0]["uuid"] == "GPU-0"
    assert gone["gpus"][0]["total_gb"] is None
    assert gone["vram"]["available_gb"] is None
    assert gone["vram"]["reserved_headroom_gb"] == 5.0
    assert gone["reservations"] == [made]
    machine.scene("generation 2", "count 1", gpu(0, 24, 1))
    back = machine.until(lambda shown: shown["telemetry"]["gpu"] == "ok")
    assert (back["gpus"][0]["used_gb"], back["gpus"][0]["available_gb"]) == (1.0, 18.0)
    assert back["reservations"][0]["gpu_ids"] == [0]
    assert machine.ask("problems") == []
    assert machine.calls().count("init") > 1


def test_a_charge_made_while_the_driver_was_away_is_on_its_device_afterwards(machine):
    machine.start(f"init {MISMATCH}", "count 1", gpu(0, 24, 0))
    machine.ask("admit", instance_id="a", gpu_ids=[0], vram_gb=10)
    machine.scene("count 1", gpu(0, 24, 0))
    back = machine.until(lambda shown: shown["telemetry"]["gpu"] == "ok")
    assert back["gpus"][0]["available_gb"] == 14.0
    assert back["instance_charges"][0]["gpu_ids"] == [0]


def test_a_lost_gpu_is_null_and_the_others_go_on(machine):
    machine.start("count 2", gpu(0, 24, 4), gpu(1, 24, 0))
    machine.ask("reserve", vram=20)
    machine.scene("count 2", gpu(0, 24, 4), gpu(1, 24, 0, status=LOST))
    shown = machine.until(lambda shown: shown["gpus"][1]["problem"])
    assert "GPU is lost" in shown["gpus"][1]["problem"]
    assert (shown["gpus"][1]["uuid"], shown["gpus"][1]["total_gb"]) == ("GPU-1", None)
    assert shown["gpus"][1]["available_gb"] is None
    assert shown["vram"] == {
        "total_gb": 24.0,
        "system_used_gb": 4.0,
        "reserved_headroom_gb": 0.0,
        "reported_used_gb": 4.0,
        "available_gb": 20.0,
    }
    assert shown["reservations"][0]["gpu_ids"] == [1]
    assert machine.ask("reserve", vram=20)["gpu_ids"] == [0]
    refused = machine.answer("reserve", vram=1, gpu_ids=[1])
    assert refused["error"] == "TelemetryUnavailable"
    assert "GPU is lost" in refused["text"]
    assert "1 of 2 can be used" in machine.answer("reserve", vram=1, gpu_count=2)["text"]


def test_a_gpu_without_memory_of_its_own_is_charged_to_ram(machine):
    machine.start("count 1", gpu(0, 0, 0, name="NVIDIA-GB10", status=NOT_SUPPORTED))
    shown = machine.ask("snapshot")
    assert (shown["memory_type"], shown["vram"]) == ("RAM", None)
    device = shown["gpus"][0]
    assert (device["memory_type"], device["problem"]) == ("RAM", None)
    assert device["total_gb"] == shown["ram"]["total_gb"]
    assert machine.ask("memory")["memory_type"] == "RAM"
    assert machine.ask("reserve", vram=0.5)["gpu_ids"] == [0]
    assert machine.ask("admit", instance_id="a", vram_gb=0.25) == [0]
    assert machine.ask("snapshot")["ram"]["reserved_headroom_gb"] == 0.75
    assert machine.ask("kind") == ["nvidia_cuda", 1]


def test_names_and_uuids_that_can_not_be_read_are_null(machine):
    machine.start("count 1", gpu(0, 24, 4, uuid="-", name="-"), f"processes_status {NO_PERMISSION}")
    device = machine.ask("snapshot")["gpus"][0]
    assert (device["uuid"], device["name"], device["used_gb"]) == (None, None, 4.0)
    assert machine.ask("reserve", vram=1)["gpu_ids"] == [0]


def test_mig_instances_are_devices_of_their_own_known_by_uuid(machine):
    parts = [f"mig 0 {part} MIG-{part} NVIDIA-MIG {10 * GIB} 0 0" for part in (1, 3)]
    machine.start("count 2", gpu(0, 80, 1, mig=1), gpu(1, 24, 20), *parts)
    shown = machine.ask("snapshot")
    assert [(d["index"], d["uuid"], d["mig_parent"]) for d in shown["gpus"]] == [
        (1, "GPU-1", None),
        (2, "MIG-1", 0),
        (3, "MIG-3", 0),
    ]
    assert machine.ask("reserve", vram=8)["gpu_ids"] == ["MIG-1"]
    assert machine.ask("admit", instance_id="a", vram_gb=8) == ["MIG-3"]
    assert machine.ask("admit", instance_id="b", gpu_ids=["MIG-1"], vram_gb=2) == ["MIG-1"]
    assert [d["available_gb"] for d in machine.ask("snapshot")["gpus"]] == [4.0, 0.0, 2.0]


def test_mig_without_an_instance_says_what_to_do(machine):
    machine.start("count 1", gpu(0, 80, 1, mig=1))
    assert "nvidia-smi mig -cgi" in machine.ask("snapshot")["gpus"][0]["problem"]
    assert "0 of 1 can be used" in machine.answer("reserve", vram=1)["text"]


def test_what_an_instance_uses_is_not_counted_twice(machine, child):
    machine.start("count 1", gpu(0, 24, 1))
    machine.ask("admit", instance_id="a", vram_gb=10)
    machine.ask("spawned", instance_id="a", pid=child)
    assert machine.ask("snapshot")["gpus"][0]["available_gb"] == 13.0
    machine.scene("count 1", gpu(0, 24, 7), f"process 0 -1 {child} {6 * GIB}")
    shown = machine.until(lambda shown: shown["gpus"][0]["used_gb"] == 7.0)
    assert shown["gpus"][0]["reserved_headroom_gb"] == 4.0
    assert shown["gpus"][0]["available_gb"] == 13.0
    assert shown["instance_charges"][0]["actual_vram_gb"] == 6.0
    machine.ask("ended", instance_id="a")
    assert machine.ask("snapshot")["gpus"][0]["available_gb"] == 17.0  # until the driver has it back


def test_an_adopted_instance_is_charged_on_the_device_that_it_was_started_on(machine):
    machine.start("count 2", gpu(0, 24, 0), gpu(1, 24, 0))
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "1"}
    with subprocess.Popen(["sleep", "600"], env=environment) as process:
        machine.ask("adopt", instance_id="a", pid=process.pid, vram_gb=20)
        process.kill()
    assert [d["available_gb"] for d in machine.ask("snapshot")["gpus"]] == [24.0, 4.0]


def test_use_of_a_job_is_that_of_its_process_tree_and_unavailable_values_are_left_out(machine, child):
    family = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    grandchild = int(family.stdout.readline())
    machine.start("count 2", gpu(0, 24, 1), gpu(1, 24, 20))
    machine.ask("reserve", job_id="train", vram=10, ram=0.2)
    machine.ask("run_job", job_id="train", pids=[family.pid])
    machine.scene(
        "count 2",
        gpu(0, 24, 9),
        gpu(1, 24, 22),
        f"process 1 -1 {grandchild} {2 * GIB}",
        f"process 0 -1 {grandchild} {3 * GIB}",
        f"process 0 -1 {family.pid} -1",
        f"process 0 -1 {child} {4 * GIB}",
    )
    shown = machine.until(lambda shown: shown["reservations"][0]["actual_vram_gb"] == 5.0)
    assert shown["reservations"][0]["status"] == "running"
    # What it uses where nothing was promised to it is measured use, and takes nothing off its promise.
    assert [device["reserved_headroom_gb"] for device in shown["gpus"]] == [7.0, 0.0]
    assert [device["available_gb"] for device in shown["gpus"]] == [8.0, 2.0]
    assert machine.until(lambda shown: shown["reservations"][0]["actual_ram_gb"] is not None)
    os.kill(grandchild, 9)
    family.wait()
    family.stdout.close()


def test_a_start_on_a_full_gpu_names_free_needed_and_who_holds_it(machine, child):
    machine.start("count 1", gpu(0, 24, 20), f"process 0 -1 {child} {19 * GIB}")
    refused = machine.answer("admit", instance_id="a", gpu_ids=[0], vram_gb=10)
    assert refused["error"] == "GpuShort"
    assert refused["text"].startswith("GPU 0 (NVIDIA-X): 4.0 GB free, 10.0 GB needed")
    assert f"pid {child} (sleep, 19.0 GB)" in refused["text"]
    assert machine.ask("snapshot")["instance_charges"] == []


def test_memory_that_comes_back_after_a_stop_is_waited_for(machine, child):
    machine.start("count 1", gpu(0, 24, 22), f"process 0 -1 {child} {20 * GIB}")
    machine.ask("ended", instance_id="old")
    machine.order("admit", instance_id="new", vram_gb=18)
    machine.scene("count 1", gpu(0, 24, 2))
    assert machine.next_answer() == {"result": [0]}


def test_memory_that_does_not_come_back_fails_the_start_after_the_wait(machine, child):
    machine.start("count 1", gpu(0, 24, 22), f"process 0 -1 {child} {20 * GIB}")
    machine.ask("ended", instance_id="old")
    refused = machine.answer("admit", instance_id="new", vram_gb=18)
    assert refused["error"] == "GpuShort"
    assert "after waiting" in refused["text"]


def test_a_hung_driver_call_holds_no_request_and_its_last_reading_grows_old(machine):
    machine.start("count 1", gpu(0, 24, 4))
    made = machine.ask("reserve", vram=2)
    machine.scene("hang 1", "count 1", gpu(0, 24, 9))
    aged = machine.until(lambda shown: shown["telemetry"]["age_s"]["gpu"] > 2)
    assert aged["telemetry"]["age_s"]["ram"] < 2
    assert aged["gpus"][0]["used_gb"] == 4.0
    assert machine.ask("reserve", ram=0.1)["status"] == "pending"
    assert machine.ask("admit", instance_id="a", gpu_ids=[0], vram_gb=1) == [0]
    machine.until(lambda shown: shown["telemetry"]["gpu"] == "unreadable")
    refused = machine.answer("reserve", vram=1)
    assert refused["error"] == "TelemetryUnavailable"
    assert "does not answer" in refused["text"]
    machine.ask("release", reservation_id=made["id"])
    machine.scene("count 1", gpu(0, 24, 9))
    machine.until(lambda shown: shown["telemetry"]["gpu"] == "ok" and shown["gpus"][0]["used_gb"] == 9.0)


def test_a_hung_driver_does_not_hold_the_start_or_the_end_of_the_agent(machine):
    machine.start("hang 1", "count 1", gpu(0, 24, 4))
    shown = machine.ask("snapshot")
    assert shown["telemetry"]["gpu"] == "unreadable"
    assert shown["ram"]["total_gb"] > 0
    machine.close()


def test_an_unknown_error_of_the_driver_is_told_in_its_words(machine):
    machine.start("count 1", gpu(0, 24, 4, status=UNKNOWN))
    device = machine.ask("snapshot")["gpus"][0]
    assert (device["total_gb"], device["problem"]) == (None, "the NVIDIA driver answered: Unknown Error")


def test_a_real_gpu_is_read_like_the_scripted_one(tmp_path):
    """Runs against the driver of this machine; on one without, it must say that there is none."""
    real = Machine(tmp_path, tmp_path)
    real.start()
    try:
        shown = real.ask("snapshot")
        if _has_driver():
            assert shown["telemetry"]["gpu"] == "ok"
            assert all(device["uuid"] and device["total_gb"] > 0 for device in shown["gpus"])
            assert real.ask("reserve", vram=0.5)["gpu_ids"]
            assert real.ask("snapshot")["vram"]["reserved_headroom_gb"] == 0.5
        else:
            assert (shown["telemetry"]["gpu"], shown["gpus"]) == ("none", [])
    finally:
        real.close()


def _has_driver():
    if not Path("/dev/nvidiactl").exists():
        return False
    return ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2() == 0
