"""The life of an instance, with a scripted server behind it."""

import os
import random
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from tests.agent import Agent, wait_until
from tests.conftest import AgentFactory

FAKE = Path(__file__).with_name("fake_llama.py")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights.gguf"
    path.write_bytes(b"GGUF")
    return path


@pytest.fixture
def fake_agent(make_agent: AgentFactory) -> Agent:
    agent = make_agent(LLAMA_SERVER_PATH=str(FAKE), MAX_RETRIES="0", STOP_TIMEOUT_S="1")
    agent.start()
    return agent


class Maker:
    def __init__(self, agent: Agent, weights: Path):
        self.agent, self.weights = agent, weights

    def __call__(self, *args: str, alias: str = "fake", **config: Any) -> str:
        return self.agent.create(
            {
                "backend_type": "llamacpp",
                "alias": alias,
                "model": str(self.weights),
                "host": "127.0.0.1",
                "extra_args": list(args),
                **config,
            }
        )


@pytest.fixture
def make(fake_agent: Agent, weights: Path) -> Maker:
    return Maker(fake_agent, weights)


def served_pid(instance: dict[str, Any]) -> int:
    return int(requests.get(f"http://127.0.0.1:{instance['port']}/v1/models", timeout=5).json()["pid"])


def lives(pid: int) -> bool:
    """A process that nobody has reaped yet is gone too."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def start(agent: Agent, instance_id: str) -> dict[str, Any]:
    answer = agent.post(f"/instances/{instance_id}/start")
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["instance"])


def test_an_instance_goes_from_created_to_running_to_stopped_to_deleted(
    fake_agent: Agent, make: Maker
) -> None:
    instance_id = make()
    created = fake_agent.instance(instance_id)
    assert (created["status"], created["reason"], created["run"]) == ("stopped", "never_started", 0)

    running = start(fake_agent, instance_id)
    assert (running["status"], running["reason"], running["run"]) == ("running", "ready", 1)
    assert running["context_size"] == 1234, "what the server reports replaces the configured value"
    assert served_pid(running) == running["pid"]

    stopped = fake_agent.post(f"/instances/{instance_id}/stop").json()["instance"]
    assert (stopped["status"], stopped["reason"], stopped["pid"], stopped["port"]) == (
        "stopped",
        "user_stop",
        None,
        None,
    )
    assert not lives(running["pid"])
    assert fake_agent.request("DELETE", f"/instances/{instance_id}").status_code == 200
    assert fake_agent.get(f"/instances/{instance_id}").status_code == 404
    assert fake_agent.get("/instances").json() == []
    lines = [entry["line"] for entry in fake_agent.get(f"/instances/{instance_id}/logs").json()]
    assert "fake server listening" in lines, "its log can still be read"


def test_starting_a_running_one_and_stopping_a_stopped_one_change_nothing(
    fake_agent: Agent, make: Maker
) -> None:
    instance_id = make()
    assert fake_agent.post(f"/instances/{instance_id}/stop").json()["instance"]["status"] == "stopped"
    first = start(fake_agent, instance_id)
    assert start(fake_agent, instance_id)["pid"] == first["pid"]


def test_twenty_starts_at_once_give_one_process_and_twenty_answers(fake_agent: Agent, make: Maker) -> None:
    instance_id = make("--ready-after", "0.5")
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: start(fake_agent, instance_id), range(20)))
    assert {answer["pid"] for answer in answers} == {served_pid(answers[0])}
    assert {answer["run"] for answer in answers} == {1}


def test_a_restart_gives_a_new_process(fake_agent: Agent, make: Maker) -> None:
    instance_id = make()
    first = start(fake_agent, instance_id)
    second = fake_agent.post(f"/instances/{instance_id}/restart").json()["instance"]
    assert second["pid"] != first["pid"]
    assert second["run"] == 2
    assert not lives(first["pid"])


def test_a_restart_that_cannot_work_leaves_the_server_running(
    fake_agent: Agent, make: Maker, weights: Path
) -> None:
    instance_id = make()
    first = start(fake_agent, instance_id)
    weights.unlink()
    answer = fake_agent.post(f"/instances/{instance_id}/restart")
    assert answer.status_code == 500
    assert answer.json()["detail"].startswith("it was not restarted and still runs: ")
    assert str(weights) in answer.json()["detail"]
    now = fake_agent.instance(instance_id)
    assert (now["status"], now["pid"], now["run"]) == ("running", first["pid"], 1)
    assert served_pid(now) == first["pid"]


def test_a_server_that_ignores_term_is_killed(fake_agent: Agent, make: Maker) -> None:
    instance_id = make("--ignore-term")
    pid = start(fake_agent, instance_id)["pid"]
    stopped = fake_agent.post(f"/instances/{instance_id}/stop").json()["instance"]
    assert (stopped["status"], stopped["signal"], stopped["exit_code"]) == ("stopped", "SIGKILL", None)
    assert not lives(pid)


@pytest.mark.parametrize("flag", ["--fork-twice", "--leave-group"])
def test_a_stop_ends_what_the_server_started_too(fake_agent: Agent, make: Maker, flag: str) -> None:
    before = {process.pid for process in fake_agent.left_alive()}
    instance_id = make(flag)
    start(fake_agent, instance_id)
    fake_agent.post(f"/instances/{instance_id}/stop")
    assert {process.pid for process in fake_agent.left_alive()} == before


def test_what_a_crashed_server_leaves_behind_is_ended(fake_agent: Agent, make: Maker) -> None:
    before = {process.pid for process in fake_agent.left_alive()}
    instance_id = make("--fork-twice")
    os.kill(start(fake_agent, instance_id)["pid"], signal.SIGUSR1)
    fake_agent.wait_for_status(instance_id, "failed")
    wait_until(
        lambda: {process.pid for process in fake_agent.left_alive()} == before, 10, "the rest of it to end"
    )


def test_an_exit_that_nobody_asked_for_is_a_failure_with_its_last_words(
    fake_agent: Agent, make: Maker
) -> None:
    instance_id = make()
    os.kill(start(fake_agent, instance_id)["pid"], signal.SIGUSR1)
    failed = fake_agent.wait_for_status(instance_id, "failed")
    assert (failed["reason"], failed["exit_code"], failed["signal"], failed["pid"]) == (
        "exited",
        7,
        None,
        None,
    )
    assert "last words" in failed["error_message"]
    assert fake_agent.post(f"/instances/{instance_id}/stop").json()["instance"]["status"] == "stopped"


def test_a_signal_from_outside_is_a_crash_and_named(fake_agent: Agent, make: Maker) -> None:
    instance_id = make()
    os.kill(start(fake_agent, instance_id)["pid"], signal.SIGSEGV)
    failed = fake_agent.wait_for_status(instance_id, "failed")
    assert (failed["reason"], failed["exit_code"], failed["signal"]) == ("crashed", None, "SIGSEGV")
    assert "SIGSEGV" in failed["error_message"]


def test_a_failed_start_answers_with_code_and_log(fake_agent: Agent, make: Maker) -> None:
    instance_id = make("--exit", "3")
    answer = fake_agent.post(f"/instances/{instance_id}/start")
    assert answer.status_code == 500
    body = answer.json()
    assert body["instance_id"] == instance_id
    assert body["exit_code"] == 3
    assert body["log_tail"] == ["fake server starting", "it will not work"]
    assert "code 3" in body["detail"]
    failed = fake_agent.instance(instance_id)
    assert (failed["status"], failed["reason"], failed["error_message"]) == (
        "failed",
        "exited",
        body["detail"],
    )


def test_a_failed_start_is_not_explained_by_an_earlier_run(fake_agent: Agent, make: Maker) -> None:
    running = make("--raw", "b'CUDA error: out of memory\\n'")
    start(fake_agent, running)
    fake_agent.post(f"/instances/{running}/stop")
    config = fake_agent.instance(running)["config"]
    fake_agent.request(
        "PUT", f"/instances/{running}", json={"config": {**config, "extra_args": ["--exit", "3"]}}
    )
    answer = fake_agent.post(f"/instances/{running}/start").json()
    assert "GPU" not in answer["detail"]
    assert answer["log_tail"] == ["fake server starting", "it will not work"]
    assert fake_agent.instance(running)["reason"] == "exited"

    fake_agent.request(
        "PUT", f"/instances/{running}", json={"config": {**config, "model": "/nowhere/x.gguf"}}
    )
    assert fake_agent.post(f"/instances/{running}/start").json()["log_tail"] == [], "nothing was run"


def test_a_start_shows_nothing_of_the_failure_before_it(fake_agent: Agent, make: Maker) -> None:
    instance_id = make("--exit", "3")
    fake_agent.post(f"/instances/{instance_id}/start")
    config = {**fake_agent.instance(instance_id)["config"], "extra_args": ["--never-ready"]}
    fake_agent.request("PUT", f"/instances/{instance_id}", json={"config": config})
    with ThreadPoolExecutor() as pool:
        start = pool.submit(fake_agent.post, f"/instances/{instance_id}/start")
        starting = fake_agent.wait_for_status(instance_id, "starting")
        assert (starting["reason"], starting["error_message"]) == (None, None)
        assert fake_agent.post(f"/instances/{instance_id}/stop").status_code == 200
        assert start.result().status_code == 500


def test_a_server_killed_while_starting_names_the_signal(fake_agent: Agent, make: Maker) -> None:
    instance_id = make("--kill-self")
    answer = fake_agent.post(f"/instances/{instance_id}/start").json()
    assert "SIGKILL" in answer["detail"]
    assert fake_agent.instance(instance_id)["signal"] == "SIGKILL"


def test_a_failed_start_is_tried_again(make_agent: AgentFactory, weights: Path, tmp_path: Path) -> None:
    agent = make_agent(LLAMA_SERVER_PATH=str(FAKE), MAX_RETRIES="2")
    agent.start()
    make = Maker(agent, weights)
    instance_id = make("--fail-first", str(tmp_path / "tried"))
    running = start(agent, instance_id)
    assert (running["status"], running["run"], running["retry_count"]) == ("running", 2, 0)

    hopeless = make("--exit", "1", alias="hopeless")
    assert agent.post(f"/instances/{hopeless}/start").status_code == 500
    failed = agent.instance(hopeless)
    assert (failed["retry_count"], failed["run"]) == (2, 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"model": "/nowhere/x.gguf"}, "/nowhere/x.gguf"), ({"port": 1}, "port 1 ")],
)
def test_a_start_that_cannot_work_is_not_tried_again(
    make_agent: AgentFactory, weights: Path, change: dict[str, Any], words: str
) -> None:
    agent = make_agent(LLAMA_SERVER_PATH=str(FAKE), MAX_RETRIES="2")
    agent.start()
    holder = socket.socket()
    with holder:
        if "port" in change:
            holder.bind(("127.0.0.1", 0))
            holder.listen()
            change = {"port": holder.getsockname()[1]}
            words = f"port {change['port']} "
        instance_id = Maker(agent, weights)(**change)
        answer = agent.post(f"/instances/{instance_id}/start")
    assert answer.status_code == 500
    assert words in answer.json()["detail"]
    failed = agent.instance(instance_id)
    assert (failed["status"], failed["reason"], failed["retry_count"], failed["run"]) == (
        "failed",
        "spawn_error",
        0,
        0,
    )


def test_a_missing_executable_says_how_to_get_one(make_agent: AgentFactory, weights: Path) -> None:
    agent = make_agent(LLAMA_SERVER_PATH="/nowhere/llama-server")
    agent.start()
    instance_id = Maker(agent, weights)()
    detail = agent.post(f"/instances/{instance_id}/start").json()["detail"]
    assert detail.startswith("LLAMA_SERVER_PATH=/nowhere/llama-server is not an executable file")
    assert "install llama.cpp" in detail
    assert f"warning: llama.cpp instances can't start: {detail}" in agent.log()


@pytest.mark.parametrize("flag", ["--never-ready", "--silent"])
def test_a_server_that_never_gets_ready_is_ended(make_agent: AgentFactory, weights: Path, flag: str) -> None:
    agent = make_agent(LLAMA_SERVER_PATH=str(FAKE), INSTANCE_READY_TIMEOUT_S="1.5")
    agent.start()
    instance_id = Maker(agent, weights)(flag)
    answer = agent.post(f"/instances/{instance_id}/start")
    assert answer.status_code == 500
    assert "not ready" in answer.json()["detail"]
    failed = agent.instance(instance_id)
    assert (failed["status"], failed["reason"], failed["pid"]) == ("failed", "ready_timeout", None)


def test_a_server_that_still_loads_gets_more_time(make_agent: AgentFactory, weights: Path) -> None:
    agent = make_agent(LLAMA_SERVER_PATH=str(FAKE), INSTANCE_READY_TIMEOUT_S="2")
    agent.start()
    instance_id = Maker(agent, weights)("--ready-after", "5", "--grow")
    assert start(agent, instance_id)["status"] == "running"


def test_progress_does_not_extend_a_start_for_ever(make_agent: AgentFactory, weights: Path) -> None:
    agent = make_agent(LLAMA_SERVER_PATH=str(FAKE), INSTANCE_READY_TIMEOUT_S="2", INSTANCE_READY_MAX_S="3")
    agent.start()
    instance_id = Maker(agent, weights)("--ready-after", "60", "--grow")
    assert agent.post(f"/instances/{instance_id}/start").status_code == 500
    assert agent.instance(instance_id)["reason"] == "ready_timeout"


def test_an_answer_from_another_program_is_not_readiness(fake_agent: Agent, make: Maker) -> None:
    """Another server takes the port between our check and the child's bind."""
    instance_id = make("--silent")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(fake_agent.post, f"/instances/{instance_id}/start")
        port = wait_until(lambda: fake_agent.instance(instance_id)["port"], 10, "a port")
        intruder = subprocess.Popen(
            [sys.executable, str(FAKE), "--port", str(port)], stdout=subprocess.DEVNULL
        )
        try:
            assert answer.result(30).status_code == 500
            assert "another program" in answer.result().json()["detail"]
        finally:
            intruder.kill()
            intruder.wait()


def test_a_stop_during_a_start_wins(fake_agent: Agent, make: Maker) -> None:
    instance_id = make("--never-ready")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(fake_agent.post, f"/instances/{instance_id}/start")
        pid = wait_until(lambda: fake_agent.instance(instance_id)["pid"], 10, "a process")
        stopped = fake_agent.post(f"/instances/{instance_id}/stop")
        assert stopped.json()["instance"]["status"] == "stopped"
        assert not lives(pid)
        assert answer.result(10).status_code == 500
        assert "stopped while starting" in answer.result().json()["detail"]
    assert fake_agent.instance(instance_id)["reason"] == "user_stop"


def test_ports_are_given_once_and_come_back(fake_agent: Agent, make: Maker) -> None:
    ids = [make(alias=f"m{number}") for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        ports = [instance["port"] for instance in pool.map(lambda i: start(fake_agent, i), ids)]
    assert len(set(ports)) == 4
    fake_agent.post(f"/instances/{ids[0]}/stop")
    assert start(fake_agent, ids[0])["port"] == fake_agent.instance(ids[0])["port"]
    last = max(ids, key=lambda i: fake_agent.instance(i)["port"])
    before = fake_agent.instance(last)["port"]
    fake_agent.post(f"/instances/{next(i for i in ids if i != last)}/stop")
    assert fake_agent.post(f"/instances/{last}/restart").json()["instance"]["port"] == before


def test_only_a_settled_instance_can_be_changed_or_deleted(fake_agent: Agent, make: Maker) -> None:
    instance_id = make()
    config = start(fake_agent, instance_id)["config"]
    assert fake_agent.request("PUT", f"/instances/{instance_id}", json={"config": config}).status_code == 400
    assert fake_agent.request("DELETE", f"/instances/{instance_id}").status_code == 400
    fake_agent.post(f"/instances/{instance_id}/stop")
    changed = fake_agent.request(
        "PUT", f"/instances/{instance_id}", json={"config": {**config, "alias": "new"}, "managed_by": "me"}
    ).json()["instance"]
    assert (changed["config"]["alias"], changed["managed_by"]) == ("new", "me")
    cleared = fake_agent.request("PUT", f"/instances/{instance_id}", json={"managed_by": None}).json()[
        "instance"
    ]
    assert (cleared["managed_by"], cleared["config"]["alias"]) == (None, "new")


OF_NO_USE = {"HARBOR_PASSWORD": "of-the-registry", "HF_TOKEN": "of-the-hub"}  # to a llama-server


def test_keys_reach_the_child_by_environment_alone_and_never_leave_in_a_log(
    make_agent: AgentFactory, weights: Path
) -> None:
    fake_agent = make_agent(LLAMA_SERVER_PATH=str(FAKE), **OF_NO_USE)
    fake_agent.start()
    make = Maker(fake_agent, weights)
    instance_id = make("--print-environment", api_key="of-the-instance")
    running = start(fake_agent, instance_id)
    process = psutil.Process(running["pid"])
    assert set(process.environ()["LLAMA_API_KEY"].split(",")) == {"of-the-instance", fake_agent.key}
    assert fake_agent.key not in " ".join(process.cmdline())
    assert {"API_KEY", *OF_NO_USE}.isdisjoint(process.environ()), "it has no use for them"

    def lines_with_key() -> list[str]:
        lines = [entry["line"] for entry in fake_agent.get(f"/instances/{instance_id}/logs").json()]
        return lines if any(line.startswith("key ") for line in lines) else []

    lines = wait_until(lines_with_key, 10, "the line with the keys")
    assert any("***" in line for line in lines)
    assert not any(fake_agent.key in line for line in lines)


def test_a_random_order_of_calls_leaves_nothing_behind(fake_agent: Agent, make: Maker) -> None:
    order = random.Random(20)
    ids = [make(alias=f"m{number}") for number in range(3)]
    calls = [
        lambda i: fake_agent.post(f"/instances/{i}/start"),
        lambda i: fake_agent.post(f"/instances/{i}/stop"),
        lambda i: fake_agent.post(f"/instances/{i}/restart"),
        lambda i: fake_agent.request("PUT", f"/instances/{i}", json={"managed_by": "x"}),
    ]
    plan = [(order.choice(calls), order.choice(ids)) for _ in range(120)]
    before = {process.pid for process in fake_agent.own_processes()}
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda step: step[0](step[1]), plan))
    allowed = {200, 400, 500}
    assert {answer.status_code for answer in answers} <= allowed
    for answer in answers:
        if answer.status_code == 500:
            assert "stopped while starting" in answer.json()["detail"], answer.text
    for instance_id in ids:
        fake_agent.post(f"/instances/{instance_id}/stop")
        assert fake_agent.request("DELETE", f"/instances/{instance_id}").status_code == 200
    assert {process.pid for process in fake_agent.left_alive()} == before


def test_threads_and_descriptors_stay_the_same_over_many_runs(fake_agent: Agent, make: Maker) -> None:
    worker = max(fake_agent.own_processes(), key=lambda process: process.num_threads())
    instance_id = make()

    def cycle() -> None:
        start(fake_agent, instance_id)
        fake_agent.post(f"/instances/{instance_id}/stop")

    for _ in range(3):
        cycle()
    threads, files = worker.num_threads(), worker.num_fds()
    for _ in range(15):
        cycle()
    # The pool of request threads may have grown by a few; a leak would show fifteen.
    wait_until(lambda: worker.num_threads() < threads + 5, 5, "the threads of ended runs to end")
    assert worker.num_fds() < files + 5


def test_a_deleted_instance_cannot_be_started(fake_agent: Agent, make: Maker) -> None:
    instance_id = make()
    fake_agent.request("DELETE", f"/instances/{instance_id}")
    assert fake_agent.post(f"/instances/{instance_id}/start").status_code == 404
