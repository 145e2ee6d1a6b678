"""Kills of the agent and of workers while a real agent pulls."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest

from tests.agent import Agent
from tests.process.models_faults import noise, wait_for
from tests.process.models_hub import Hub
from tests.process.models_puller import bytes_of

MIB = 1 << 20
SIZE = 4 * MIB
BODY = {"source": "huggingface", "source_uri": "huggingface://org/m", "model_id": "org/m"}


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.end()


@pytest.fixture
def agent(hub: Hub, tmp_path: Path) -> Iterator[Agent]:
    hub.reset()
    hub.add("org/m", model__gguf=noise(SIZE))
    settings = {"HF_ENDPOINT": hub.url, "MIN_FREE_DISK_GB": "0", "PULL_STALL_TIMEOUT_S": "60"}
    agent = Agent(tmp_path, settings)
    agent.start()
    yield agent
    agent.end()


def half_way(agent: Agent, hub: Hub) -> tuple[Thread, list[Any]]:
    """A pull that got half of its bytes and waits for more."""
    hub.fault("model.gguf", stall_at=SIZE // 2)
    answers: list[Any] = []

    def ask() -> None:
        try:
            answers.append(agent.post("/models/pull", BODY))
        except OSError as error:
            answers.append(error)

    thread = Thread(target=ask)
    thread.start()
    wait_for(lambda: sum(path.stat().st_size for path in parts(agent)) == SIZE // 2)
    return thread, answers


def parts(agent: Agent) -> list[Path]:
    return list((agent.folder / "models" / ".staging" / "hf--org--m").glob("parts/*"))


def workers(agent: Agent) -> list[psutil.Process]:
    return [process for process in agent.left_alive() if "hub_worker" in " ".join(process.cmdline())]


def check_resumes(agent: Agent, hub: Hub) -> None:
    """The next request goes on from the middle, and leaves nothing but the model."""
    assert agent.get("/models/pulls").json() == []
    hub.storage.faults.clear()
    answer = agent.post("/models/pull", BODY)
    assert answer.status_code == 200, answer.text
    [seen] = hub.storage.faults.requests()
    assert seen.headers["range"] == f"bytes={SIZE // 2}-{SIZE - 1}"
    assert seen.sent == SIZE // 2
    models = agent.folder / "models"
    assert (models / "hf--org--m" / "model.gguf").read_bytes() == bytes_of(noise(SIZE))
    assert {path.name for path in models.iterdir()} == {"manifest.json", "hf--org--m"}


def test_a_killed_agent_takes_its_worker_along_and_the_next_resumes(agent: Agent, hub: Hub) -> None:
    thread, _ = half_way(agent, hub)
    [worker] = workers(agent)
    agent.kill()
    worker.wait(10)
    assert agent.left_alive() == []
    thread.join()
    agent.start()
    check_resumes(agent, hub)


def test_a_killed_worker_fails_its_pull_and_the_next_resumes(agent: Agent, hub: Hub) -> None:
    thread, answers = half_way(agent, hub)
    [worker] = workers(agent)
    os.kill(worker.pid, signal.SIGKILL)
    thread.join()
    assert answers[0].status_code == 500
    assert answers[0].json()["error"] == "model_pull_failed"
    assert "signal 9" in answers[0].json()["detail"]
    check_resumes(agent, hub)


def test_an_agent_that_is_stopped_answers_who_waits_and_the_next_resumes(agent: Agent, hub: Hub) -> None:
    thread, answers = half_way(agent, hub)
    agent.stop()
    thread.join()
    assert answers[0].status_code == 500
    assert "agent is stopping" in answers[0].json()["detail"]
    assert agent.left_alive() == []
    agent.start()
    check_resumes(agent, hub)


def test_bytes_that_were_spoiled_meanwhile_are_noticed(agent: Agent, hub: Hub) -> None:
    thread, _ = half_way(agent, hub)
    os.kill(workers(agent)[0].pid, signal.SIGKILL)
    thread.join()
    [part] = parts(agent)
    with part.open("r+b") as file:
        file.write(b"spoiled")
    assert agent.post("/models/pull", BODY).status_code == 200
    model = agent.folder / "models" / "hf--org--m" / "model.gguf"
    assert model.read_bytes() == bytes_of(noise(SIZE))


def test_a_pull_is_seen_and_cancelled_over_rest(agent: Agent, hub: Hub) -> None:
    thread, answers = half_way(agent, hub)
    [pull] = agent.get("/models/pulls").json()
    assert pull["source_uri"] == "huggingface://org/m"
    assert (pull["phase"], pull["bytes_total"]) == ("downloading", SIZE)
    assert agent.request("DELETE", "/models/hf--org--m").status_code == 409
    answer = agent.request("DELETE", f"/models/pulls/{pull['id']}")
    assert answer.json() == {"detail": "cancelled", "id": pull["id"], "source_uri": pull["source_uri"]}
    assert workers(agent) == []
    assert list((agent.folder / "models").iterdir()) == []
    thread.join()
    assert answers[0].json()["error"] == "model_pull_failed"
