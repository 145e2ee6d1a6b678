"""Jobs of a whole agent, over HTTP."""

import json

import pytest
from websocket import create_connection

from tests.agent import Agent, wait_until
from tests.conftest import AgentFactory
from tests.docker_engine import DockerEngine
from tests.jobs_fixtures import body, shell, step, waiting


@pytest.fixture
def job_agent(make_agent: AgentFactory, docker_engine: DockerEngine) -> Agent:
    agent = make_agent(DOCKER_HOST=docker_engine.address, MIN_FREE_DISK_GB="0")
    agent.start()
    yield agent
    assert docker_engine.clear() == []


def job(agent: Agent, job_id: str) -> dict:
    answer = agent.get(f"/jobs/{job_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def ended(agent: Agent, job_id: str) -> dict:
    wait_until(lambda: job(agent, job_id)["status"] not in ("pending", "running"), 60, f"the end of {job_id}")
    return job(agent, job_id)


def test_a_job_outlives_a_killed_and_a_stopped_agent(job_agent: Agent):
    script = "env; echo one; sleep 6; echo two"
    assert (
        job_agent.post("/jobs", body("long", shell("a", script), step("b", "echo three"))).status_code == 202
    )
    wait_until(lambda: job(job_agent, "long")["steps"][0]["recent_logs"], 30, "the step to run")
    container = job(job_agent, "long")["steps"][0]["container_id"]
    job_agent.kill()
    job_agent.start()
    assert job(job_agent, "long")["status"] == "running"
    assert job_agent.stop() == 0
    job_agent.start()
    done = ended(job_agent, "long")
    assert done["status"] == "completed"
    assert done["steps"][0]["container_id"] == container
    lines = [entry["line"] for entry in done["steps"][0]["recent_logs"]]
    assert lines[-2:] == ["one", "two"]
    for path, answer in (
        ("/jobs/long/steps/b/logs", {"seq": 1, "line": "three"}),
        ("/jobs/long/steps/c/logs", {"error": "Step not found"}),
        ("/jobs/other/steps/a/logs", {"error": "Step not found"}),
    ):
        stream = create_connection(
            f"ws://127.0.0.1:{job_agent.port}{path}", timeout=10, header={"X-API-Key": job_agent.key}
        )
        assert json.loads(stream.recv()) == answer
        assert stream.recv_data()[1][:2] == (1000).to_bytes(2, "big")
        stream.close()
    assert job_agent.key not in "\n".join(lines)
    assert done["steps"][1]["recent_logs"][0]["line"] == "three"


def test_an_agent_whose_docker_is_away_says_so_and_needs_no_restart(
    job_agent: Agent, docker_engine: DockerEngine
):
    assert job_agent.post("/jobs", body("waits", waiting("one"))).status_code == 202
    wait_until(lambda: job(job_agent, "waits")["steps"][0]["recent_logs"], 30, "the step to run")
    docker_engine.stop()
    refused = job_agent.post("/jobs", body("refused", step("one", "true")))
    assert (refused.status_code, refused.json()["detail"]["error"]) == (503, "executor_unavailable")
    health = job_agent.get("/health").json()
    assert health["status"] == "degraded"
    assert any("Docker" in problem for problem in health["problems"])
    docker_engine.start()
    wait_until(lambda: job_agent.get("/health").json()["status"] == "healthy", 30, "health")
    assert job(job_agent, "waits")["status"] == "running"
    assert job_agent.request("DELETE", "/jobs/waits").json() == {"detail": "cancelled", "job_id": "waits"}
    assert job_agent.post("/jobs", body("again", step("one", "true"))).status_code == 202
    assert ended(job_agent, "again")["status"] == "completed"
