"""Children outlive the agent: what the next one finds, and what it does with it."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.agent import Agent, wait_until
from tests.conftest import AgentFactory
from tests.process.test_instances_life import FAKE, Maker, lives, served_pid, start


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights.gguf"
    path.write_bytes(b"GGUF")
    return path


def agent_with(make_agent: AgentFactory, **settings: str) -> Agent:
    agent = make_agent(LLAMA_SERVER_PATH=str(FAKE), MAX_RETRIES="0", STOP_TIMEOUT_S="1", **settings)
    agent.start()
    return agent


def log_lines(agent: Agent, instance_id: str) -> list[dict[str, Any]]:
    return list(agent.get(f"/instances/{instance_id}/logs").json())


@pytest.mark.parametrize("victim", ["worker", "master", "both"])
def test_killed_agents_leave_servers_that_the_next_one_adopts(
    make_agent: AgentFactory, weights: Path, victim: str
) -> None:
    agent = agent_with(make_agent)
    make = Maker(agent, weights)
    ids = [make("--lines", "400", "--lines-a-second", "100", alias=f"m{number}") for number in range(3)]
    before = {instance_id: start_soon(agent, instance_id) for instance_id in ids}

    master = agent.process
    assert master is not None
    workers = [process for process in agent.own_processes() if process.pid != master.pid]
    if victim == "worker":
        for worker in workers:
            worker.kill()
        psutil.wait_procs(workers, timeout=10)
    elif victim == "master":
        os.kill(master.pid, signal.SIGKILL)
        master.wait(10)
        psutil.wait_procs(workers, timeout=15)  # it notices and lets go
        assert not any(worker.is_running() for worker in workers)
        agent.start()
    else:
        agent.kill()
        agent.start()

    def all_adopted() -> bool:
        try:
            return all(agent.instance(i)["adopted"] for i in ids)
        except (OSError, AssertionError):
            return False

    wait_until(all_adopted, 20, "the new worker to adopt them")
    for instance_id in ids:
        now = agent.wait_for_status(instance_id, "running")
        assert (now["pid"], now["reason"], now["run"]) == (before[instance_id], "adopted", 1)
        assert served_pid(now) == now["pid"]
        entries = wait_until(lambda i=instance_id: whole_log(agent, i), 20, "the log to be read to its end")
        numbers = [int(e["line"].split()[1]) for e in entries if e["line"].startswith("line ")]
        assert numbers == list(range(400)), "no line is missing, none is doubled"
        seqs = [entry["seq"] for entry in entries]
        assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))


def whole_log(agent: Agent, instance_id: str) -> list[dict[str, Any]] | None:
    """Its lines, once the last one that it prints by itself is there."""
    entries = log_lines(agent, instance_id)
    return entries if any(e["line"] == "fake server listening" for e in entries) else None


def start_soon(agent: Agent, instance_id: str) -> int:
    """Begin a start without waiting for it; returns the pid."""
    with ThreadPoolExecutor(1) as pool:

        def begin() -> None:
            try:
                agent.post(f"/instances/{instance_id}/start", timeout=0.2)
            except OSError:
                return

        pool.submit(begin).result()
    return int(wait_until(lambda: agent.instance(instance_id)["pid"], 10, "a process"))


def test_an_adopted_server_can_be_stopped(make_agent: AgentFactory, weights: Path) -> None:
    agent = agent_with(make_agent)
    instance_id = Maker(agent, weights)()
    pid = start(agent, instance_id)["pid"]
    agent.kill()
    agent.start()
    assert agent.instance(instance_id)["adopted"] is True
    assert agent.post(f"/instances/{instance_id}/stop").json()["instance"]["status"] == "stopped"
    assert not lives(pid)
    again = start(agent, instance_id)
    assert (again["adopted"], again["reason"]) == (False, "ready")


def test_the_end_of_an_adopted_server_is_seen(make_agent: AgentFactory, weights: Path) -> None:
    agent = agent_with(make_agent)
    instance_id = Maker(agent, weights)()
    pid = start(agent, instance_id)["pid"]
    agent.kill()
    agent.start()
    os.kill(pid, signal.SIGKILL)
    failed = agent.wait_for_status(instance_id, "failed")
    assert failed["exit_code"] is None
    assert "adopted" in failed["error_message"]


def test_a_server_that_died_with_the_agent_is_started_again(make_agent: AgentFactory, weights: Path) -> None:
    agent = agent_with(make_agent)
    instance_id = Maker(agent, weights)()
    pid = start(agent, instance_id)["pid"]
    agent.kill()
    os.kill(pid, signal.SIGKILL)
    agent.start()
    again = agent.wait_for_status(instance_id, "running")
    assert again["pid"] != pid
    assert (again["run"], again["adopted"]) == (2, False)


def test_a_clean_stop_ends_servers_and_the_next_boot_starts_them(
    make_agent: AgentFactory, weights: Path
) -> None:
    agent = agent_with(make_agent)
    make = Maker(agent, weights)
    running, stopped = make(alias="running"), make(alias="stopped")
    pid = start(agent, running)["pid"]
    start(agent, stopped)
    agent.post(f"/instances/{stopped}/stop")
    assert agent.stop() == 0
    assert not lives(pid)
    agent.start()
    assert agent.wait_for_status(running, "running")["run"] == 2
    assert agent.instance(stopped)["status"] == "stopped"


def test_detach_leaves_servers_running_for_the_next_agent(make_agent: AgentFactory, weights: Path) -> None:
    agent = agent_with(make_agent, ON_SHUTDOWN="detach")
    instance_id = Maker(agent, weights)()
    pid = start(agent, instance_id)["pid"]
    assert agent.stop() == 0
    assert lives(pid)
    agent.start()
    adopted = agent.instance(instance_id)
    assert (adopted["pid"], adopted["status"], adopted["adopted"]) == (pid, "running", True)
    agent.post(f"/instances/{instance_id}/stop")
    assert not lives(pid)


def test_a_process_that_nobody_knows_is_stopped_at_boot(make_agent: AgentFactory, weights: Path) -> None:
    agent = agent_with(make_agent)
    instance_id = Maker(agent, weights)()
    pid = start(agent, instance_id)["pid"]
    agent.kill()
    config = agent.folder / "config.json"
    stored = json.loads(config.read_text())
    config.write_text(json.dumps({**stored, "instances": []}))
    agent.start()
    wait_until(lambda: not lives(pid), 10, "the orphan to end")
    assert f"process {pid} " in agent.log()


def test_a_number_that_belongs_to_another_program_now_is_left_alone(
    make_agent: AgentFactory, weights: Path
) -> None:
    agent = agent_with(make_agent)
    instance_id = Maker(agent, weights)()
    pid = start(agent, instance_id)["pid"]
    agent.kill()
    os.kill(pid, signal.SIGKILL)
    stranger = psutil.Popen(["sleep", "60"])
    try:
        config = agent.folder / "config.json"
        stored = json.loads(config.read_text())
        stored["instances"][0]["process"]["pid"] = stranger.pid
        config.write_text(json.dumps(stored))
        agent.start()
        agent.wait_for_status(instance_id, "running")
        assert stranger.is_running()
        agent.post(f"/instances/{instance_id}/stop")
        assert stranger.is_running()
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda _: "",
        lambda _: "[]",
        lambda _: "null",
        lambda _: '{"instances": 5}',
    ],
)
def test_a_damaged_config_loses_no_instance(make_agent: AgentFactory, weights: Path, damage: Any) -> None:
    agent = agent_with(make_agent)
    make = Maker(agent, weights)
    ids = {make(alias=f"m{number}") for number in range(3)}
    config = agent.folder / "config.json"
    agent.kill()
    broken = damage(config.read_text())
    config.write_text(broken)
    agent.start()
    assert {instance["id"] for instance in agent.get("/instances").json()} == ids
    health = agent.get("/health").json()
    assert health["status"] == "degraded"
    assert any("config.json" in problem for problem in health["problems"])
    kept = list(agent.folder.glob("config.json.unreadable-*"))
    assert [path.read_text() for path in kept] == [broken]


def test_an_entry_of_a_newer_version_is_kept_as_it_is(make_agent: AgentFactory, weights: Path) -> None:
    agent = agent_with(make_agent)
    make = Maker(agent, weights)
    known = make()
    agent.kill()
    config = agent.folder / "config.json"
    stored = json.loads(config.read_text())
    newer = {"id": "x", "config": {"backend_type": "from-the-future", "alias": "f"}, "created_at": "2030"}
    stored["instances"].append(newer)
    config.write_text(json.dumps(stored))
    agent.start()
    assert [instance["id"] for instance in agent.get("/instances").json()] == [known]
    make(alias="another")
    assert newer in json.loads(config.read_text())["instances"]
