"""Charges of instances, as callers of a real agent see them, on made-up GPUs."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.agent import Agent, wait_until
from tests.conftest import AgentFactory
from tests.resources_fakes import TWO_GPUS

FAKE = Path(__file__).with_name("fake_llama.py")


@pytest.fixture
def gpu_agent(make_agent: AgentFactory) -> Agent:
    agent = make_agent(
        LLAMA_SERVER_PATH=str(FAKE),
        MAX_RETRIES="0",
        STOP_TIMEOUT_S="1",
        INSTANCE_READY_TIMEOUT_S="1",
        VRAM_RELEASE_TIMEOUT_S="0.2",
        GPU_TELEMETRY_OVERRIDE=json.dumps(TWO_GPUS),
    )
    agent.start()
    return agent


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights.gguf"
    path.write_bytes(b"GGUF")
    return path


def create(agent: Agent, weights: Path, *flags: str, vram_gb: float, **beside: Any) -> str:
    config = {
        "backend_type": "llamacpp",
        "alias": "fake",
        "model": str(weights),
        "host": "127.0.0.1",
        "extra_args": list(flags),
    }
    answer = agent.post("/instances", json={"config": config, "vram_gb": vram_gb, **beside})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["instance"]["id"])


def start(agent: Agent, instance_id: str) -> dict[str, Any]:
    answer = agent.post(f"/instances/{instance_id}/start")
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["instance"])


def resources(agent: Agent) -> dict[str, Any]:
    return dict(agent.get("/resources").json())


def charged(agent: Agent) -> list[tuple[str, list[int]]]:
    return [(entry["instance_id"], entry["gpu_ids"]) for entry in resources(agent)["instance_charges"]]


def nothing_is_charged(agent: Agent) -> bool:
    shown = resources(agent)
    return shown["instance_charges"] == [] and shown["vram"]["reserved_headroom_gb"] == 0


def visible_gpus(instance: dict[str, Any]) -> str:
    return psutil.Process(instance["pid"]).environ()["CUDA_VISIBLE_DEVICES"]


def test_a_running_instance_is_charged_on_the_gpu_that_it_sees(gpu_agent: Agent, weights: Path) -> None:
    chosen = create(gpu_agent, weights, vram_gb=20)
    pinned = create(gpu_agent, weights, vram_gb=2, gpu_ids=[1, 0])
    assert visible_gpus(start(gpu_agent, chosen)) == "1"
    assert visible_gpus(start(gpu_agent, pinned)) == "1,0"
    assert charged(gpu_agent) == [(chosen, [1]), (pinned, [1, 0])]
    assert [gpu["available_gb"] for gpu in resources(gpu_agent)["gpus"]] == [14.0, 2.0]
    for instance_id in (chosen, pinned):
        gpu_agent.post(f"/instances/{instance_id}/stop")
    assert nothing_is_charged(gpu_agent)


def test_every_way_for_a_start_to_fail_gives_back(gpu_agent: Agent, weights: Path) -> None:
    for flag in (["--exit", "3"], ["--kill-self"], ["--never-ready"], ["--silent"]):
        instance_id = create(gpu_agent, weights, *flag, vram_gb=20)
        assert gpu_agent.post(f"/instances/{instance_id}/start").status_code == 500
        assert nothing_is_charged(gpu_agent), flag
        assert gpu_agent.request("DELETE", f"/instances/{instance_id}").status_code == 200
    instance_id = create(gpu_agent, weights.with_name("missing.gguf"), vram_gb=20)
    assert gpu_agent.post(f"/instances/{instance_id}/start").status_code == 500
    assert nothing_is_charged(gpu_agent)


def test_a_crash_gives_back_and_a_restart_is_charged_once(gpu_agent: Agent, weights: Path) -> None:
    crashing = create(gpu_agent, weights, vram_gb=20)
    os.kill(start(gpu_agent, crashing)["pid"], signal.SIGUSR1)
    wait_until(lambda: gpu_agent.instance(crashing)["status"] == "failed", 20, "the crash")
    wait_until(lambda: nothing_is_charged(gpu_agent), 10, "the charge to be given back")
    steady = create(gpu_agent, weights, vram_gb=20)
    start(gpu_agent, steady)
    for _ in range(2):
        assert gpu_agent.post(f"/instances/{steady}/restart").status_code == 200
    assert charged(gpu_agent) == [(steady, [1])]
    assert resources(gpu_agent)["vram"]["reserved_headroom_gb"] == 20


def test_a_full_gpu_refuses_the_start_and_says_why(gpu_agent: Agent, weights: Path) -> None:
    first = create(gpu_agent, weights, vram_gb=20, gpu_ids=[1])
    second = create(gpu_agent, weights, vram_gb=10, gpu_ids=[1])
    start(gpu_agent, first)
    refused = gpu_agent.post(f"/instances/{second}/start")
    assert refused.status_code == 500
    assert (
        "GPU 1 (Big): 24.0 GB free, 20.0 GB of it promised to others, 10.0 GB needed"
        in refused.json()["detail"]
    )
    assert charged(gpu_agent) == [(first, [1])]
    reserved = gpu_agent.post(
        "/resources/reservations", json={"job_id": "j", "vram_gb": 10, "ram_gb": 0, "gpu_ids": [1]}
    )
    assert (reserved.status_code, reserved.json()["available_gb"]) == (409, 4.0)
    gpu_agent.post(f"/instances/{first}/stop")
    start(gpu_agent, second)


def test_after_a_crash_of_the_agent_living_instances_are_charged_again(
    gpu_agent: Agent, weights: Path
) -> None:
    instance_id = create(gpu_agent, weights, vram_gb=20)
    before = start(gpu_agent, instance_id)
    gpu_agent.kill()
    gpu_agent.start()
    assert gpu_agent.instance(instance_id)["pid"] == before["pid"]
    assert charged(gpu_agent) == [(instance_id, [1])]
    assert resources(gpu_agent)["gpus"][1]["available_gb"] == 4.0
    gpu_agent.post(f"/instances/{instance_id}/stop")
    assert nothing_is_charged(gpu_agent)
