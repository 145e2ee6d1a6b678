"""A whole agent, driven by a control that knows only the key of the handshake.

The first test has a real llama-server; where the model does not matter, a stand-in that is ready at once.
"""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from contrib.bench.agents import idle_server
from tests.agent import Agent
from tests.conftest import AgentFactory
from tests.control_fixtures import ControlFactory
from tests.control_process import ControlProcess, wait_for
from tests.docker_engine import DockerEngine
from tests.jobs_fixtures import body, shell
from tests.process.models_faults import noise
from tests.process.models_hub import Hub

CONTROL_KEY = "control-key-5678"
STOP_TIMEOUT_S = 10
STEP_ENDS = ("step_completed", "step_failed")


class Controlled:
    """An agent, the control that it is connected to, and what control does over REST."""

    def __init__(self, agent: Agent, control: ControlProcess):
        self.agent = agent
        self.control = control
        agent.start()
        self.wait_until_registered()

    def rest(self, method: str, path: str, body: Any = None) -> requests.Response:
        key = self.control.records("connect")[-1]["auth"]["api_key"]
        return requests.request(
            method, self.agent.url + path, json=body, headers={"X-API-Key": key}, timeout=60
        )

    def link(self) -> dict[str, Any]:
        return dict(self.rest("GET", "/health").json()["control"])

    def wait_until_registered(self) -> None:
        count = len(self.control.events("host_health"))
        wait_for(lambda: len(self.control.events("host_health")) > count, "the introduction")

    def config(self) -> dict[str, Any]:
        model = self.agent.folder / "model.gguf"
        model.write_bytes(b"GGUF")
        return {"model": str(model), "alias": "gemma", "host": "127.0.0.1", "ctx_size": 1024, "threads": 1}

    def create(self, **config: Any) -> str:
        body = {"config": {**self.config(), **config}}
        return str(self.rest("POST", "/instances", body).json()["instance"]["id"])

    def start(self) -> str:
        """Create an instance and start it; returns its id."""
        instance_id = self.create()
        answer = self.rest("POST", f"/instances/{instance_id}/start")
        assert answer.status_code == 200, answer.text
        return instance_id

    def statuses(self) -> list[str]:
        """Of the first instance, as control heard of it."""
        lists = [record["data"]["data"]["instances"] for record in self.control.events("instances_update")]
        heard = [instances[0]["status"] for instances in lists if instances]
        return [status for index, status in enumerate(heard) if index == 0 or heard[index - 1] != status]


@pytest.fixture
def make_controlled(make_agent: AgentFactory, make_control: ControlFactory) -> Callable[..., Controlled]:
    def make(**settings: str) -> Controlled:
        control = make_control(known_keys=(CONTROL_KEY,))
        agent = make_agent(
            SOLAR_CONTROL_URL=control.url,
            SOLAR_CONTROL_API_KEY=CONTROL_KEY,
            HOST_NAME="gpu-7",
            WS_RECONNECT_DELAY="0.1",
            WS_RECONNECT_MAX_DELAY="0.2",
            HEALTH_INTERVAL_S="0.5",
            STOP_TIMEOUT_S=str(STOP_TIMEOUT_S),
            **settings,
        )
        return Controlled(agent, control)

    return make


@pytest.fixture
def controlled(make_controlled: Callable[..., Controlled], tmp_path: Path) -> Controlled:
    """With model servers that are ready at once."""
    return make_controlled(LLAMA_SERVER_PATH=str(idle_server(tmp_path)))


def test_control_hears_of_everything_that_it_does(make_controlled: Callable[..., Controlled], gguf: Path):
    controlled = make_controlled()
    control = controlled.control
    instance_id = controlled.create(model=str(gguf))
    assert controlled.rest("POST", f"/instances/{instance_id}/start").status_code == 200
    instance = controlled.rest("GET", f"/instances/{instance_id}").json()
    answer = requests.post(
        f"http://127.0.0.1:{instance['port']}/v1/completions",
        json={"prompt": "One, two,", "max_tokens": 3},
        headers={"Authorization": f"Bearer {CONTROL_KEY}"},
        timeout=60,
    )
    assert answer.status_code == 200
    wait_for(lambda: _states(control) and _states(control)[-1]["phase"] == "idle", "its states")
    state = controlled.rest("GET", f"/instances/{instance_id}/state").json()
    assert _states(control)[-1].items() <= state.items()
    assert controlled.rest("POST", f"/instances/{instance_id}/stop").status_code == 200
    expected = ["stopped", "starting", "running", "stopping", "stopped"]
    wait_for(lambda: controlled.statuses() == expected, "the life of the instance")
    lines = controlled.rest("GET", f"/instances/{instance_id}/logs").json()
    wait_for(lambda: len(_lines(control)) >= len(lines), "its log")
    assert _lines(control) == [{"instance_id": instance_id, **line} for line in lines]
    assert not control.invalid()
    assert control.events("registration")[0]["data"]["host_name"] == "gpu-7"


def test_the_health_report_holds_exactly_what_rest_answers(controlled: Controlled):
    reservation = {
        "job_id": "j-1",
        "workload_type": "training",
        "vram_gb": 0,
        "ram_gb": 0.01,
        "ttl_seconds": 600,
    }
    assert controlled.rest("POST", "/resources/reservations", reservation).status_code == 201
    answers: set[str] = set()

    def both_said_the_same() -> bool:
        answers.add(json.dumps(controlled.rest("GET", "/resources").json()))
        reports = (record["data"]["data"] for record in controlled.control.events("host_health"))
        same = [report for report in reports if json.dumps(report["resources"]) in answers]
        return bool(same) and same[-1]["reservations"]["active_count"] == 1

    wait_for(both_said_the_same, "a report equal to an answer, key by key in the same order")
    assert not controlled.control.invalid()


def test_commands_are_the_rest_calls_of_their_names(controlled: Controlled):
    control, config = controlled.control, controlled.config()
    created = control.ask(id="1", action="create", params={"config": config})
    assert (created["ok"], created["status"]) == (True, 200)
    instance_id = created["body"]["instance"]["id"]
    started = control.ask(id="2", action="start", instance_id=instance_id)
    assert started["body"]["instance"]["status"] == "running"
    assert control.ask(id="3", action="get", instance_id=instance_id)["body"]["status"] == "running"
    assert [entry["id"] for entry in control.ask(id="4", action="list")["body"]] == [instance_id]
    logs = control.ask(id="5", action="logs", instance_id=instance_id, params={"tail": 3})
    assert logs["body"] == controlled.rest("GET", f"/instances/{instance_id}/logs?tail=3").json()
    refused = control.ask(id="6", action="delete", instance_id=instance_id)
    assert (refused["ok"], refused["status"]) == (False, 400)
    assert refused["body"] == controlled.rest("DELETE", f"/instances/{instance_id}").json()
    unknown = control.ask(id="7", action="get", instance_id="../health")
    assert unknown["status"] == 404
    bad = control.ask(id="8", action="create", params={"config": {"backend_type": "abacus"}})
    assert bad["status"] == 422
    assert (
        control.ask(id="9", action="stop", instance_id=instance_id)["body"]["instance"]["status"] == "stopped"
    )
    changed = control.ask(id="10", action="update", instance_id=instance_id, params={"managed_by": "me"})
    assert changed["body"]["instance"]["managed_by"] == "me"
    assert control.ask(id="11", action="delete", instance_id=instance_id)["status"] == 200
    assert control.ask(id="12", action="list")["body"] == []
    assert control.ask(id="1", action="create", params={"config": config}) == created
    assert control.ask(id="13", action="list")["body"] == []


def test_the_loss_of_control_changes_nothing_on_the_host(controlled: Controlled):
    control = controlled.control
    instance_id = controlled.start()
    before = controlled.rest("GET", f"/instances/{instance_id}").json()
    control.kill()
    wait_for(lambda: controlled.link()["state"] == "connecting", "the loss is seen")
    assert controlled.rest("GET", f"/instances/{instance_id}").json() == before
    other = controlled.create()
    control.start()
    controlled.wait_until_registered()
    last = control.events("registration")[-1]["data"]["instances"]
    assert {entry["id"]: entry["status"] for entry in last} == {instance_id: "running", other: "stopped"}
    assert controlled.rest("GET", f"/instances/{instance_id}").json() == before
    assert not control.invalid()


def test_a_rejected_host_is_revived_by_post_reconnect(controlled: Controlled):
    assert controlled.rest("POST", "/reconnect").json() == {"status": "already_connected"}
    controlled.control.do("reject", reason="moved")
    wait_for(lambda: controlled.link()["state"] == "rejected", "rejected")
    assert "moved" in controlled.link()["error"]
    assert controlled.rest("POST", "/reconnect").json() == {"status": "reconnecting"}
    wait_for(lambda: controlled.link()["state"] == "registered", "registered")


@pytest.mark.parametrize("end", [ControlProcess.kill, ControlProcess.freeze])
def test_sigterm_ends_the_agent_in_time_without_control(
    controlled: Controlled, end: Callable[[ControlProcess], None]
):
    controlled.start()
    end(controlled.control)
    began = time.monotonic()
    controlled.agent.stop()
    took_s = time.monotonic() - began
    if end is ControlProcess.freeze:
        controlled.control.thaw()
    assert took_s < STOP_TIMEOUT_S + 5
    assert not controlled.agent.left_alive()


def test_no_key_is_seen_outside(controlled: Controlled):
    controlled.start()
    keys = (CONTROL_KEY, controlled.agent.key)
    commands = [" ".join(process.cmdline()) for process in controlled.agent.left_alive()]
    assert any("--port" in command for command in commands)
    seen = json.dumps(
        [commands, controlled.control.events(), controlled.link(), controlled.agent.log()],
    )
    logs = "".join(path.read_text() for path in (controlled.agent.folder / "logs").glob("*.log"))
    assert not [key for key in keys if key in seen or key in logs]


def test_a_job_and_a_pull_go_on_while_control_comes_and_goes(
    make_controlled: Callable[..., Controlled], docker_engine: DockerEngine
):
    hub = Hub()
    uri = hub.add("org/model", model__gguf=noise(400_000))
    hub.fault("model.gguf", bytes_per_s=100_000)
    controlled = make_controlled(
        DOCKER_HOST=docker_engine.address,
        HF_ENDPOINT=hub.url,
        PULL_PROGRESS_INTERVAL_S="0.2",
        MIN_FREE_DISK_GB="0",
    )
    control = controlled.control
    script = "for i in 1 2 3 4; do echo line $i; sleep 1; done"
    job = body("job-1", shell("first", script), shell("second", "echo no >&2; exit 3"))
    assert controlled.rest("POST", "/jobs", job).status_code == 202
    pull = {"source": "huggingface", "source_uri": uri, "model_id": "org/model"}
    with ThreadPoolExecutor(1) as pool:
        pulled = pool.submit(controlled.rest, "POST", "/models/pull", pull)
        wait_for(lambda: control.events("step_log") and control.events("pull_progress"), "both run")
        while not pulled.done() or controlled.rest("GET", "/jobs/job-1").json()["status"] == "running":
            control.kill()
            control.start()
            controlled.wait_until_registered()
    assert pulled.result().status_code == 200
    ends = ["job_failed", "job_started", "step_completed", "step_failed", "step_started", "step_started"]
    wait_for(lambda: sorted(_job_events(control)) == ends and len(_ends_of_pulls(control)) == 1, "the ends")
    assert _ends_of_pulls(control) == ["completed"]
    completed = [entry for entry in _step_entries(control) if entry.get("completed")]
    assert [(entry["step_name"], entry["exit_code"]) for entry in completed] == [("first", 0), ("second", 3)]
    assert control.events("job_started")[0]["data"]["host_id"] == f"host-{CONTROL_KEY[-4:]}"
    assert not control.invalid()
    hub.end()


def test_an_agent_that_is_killed_while_control_is_away_tells_later_what_happened(
    make_controlled: Callable[..., Controlled], docker_engine: DockerEngine
):
    controlled = make_controlled(DOCKER_HOST=docker_engine.address, MIN_FREE_DISK_GB="0")
    control = controlled.control
    control.kill()
    job = body("job-1", shell("first", "echo done"), shell("second", "echo no >&2; exit 3"))
    assert controlled.rest("POST", "/jobs", job).status_code == 202
    wait_for(lambda: controlled.rest("GET", "/jobs/job-1").json()["status"] == "failed", "its end")
    controlled.agent.kill()
    control.start()
    controlled.agent.start()
    wait_for(lambda: "job_failed" in _job_events(control), "its end is told")
    assert _job_events(control) == [
        "job_started",
        "step_started",
        "step_completed",
        "step_started",
        "step_failed",
        "job_failed",
    ]
    completed = [entry for entry in _step_entries(control) if entry.get("completed")]
    assert [(entry["step_name"], entry["exit_code"]) for entry in completed] == [("first", 0), ("second", 3)]
    wait_for(lambda: not any(controlled.link()["queued"].values()), "all is acknowledged")
    controlled.agent.kill()
    connections = len(control.records("connect"))
    controlled.agent.start()
    wait_for(lambda: len(control.records("connect")) > connections, "the next agent")
    controlled.wait_until_registered()
    assert len(_job_events(control)) == 6
    assert not control.invalid()


def _states(control: ControlProcess) -> list[dict[str, Any]]:
    batches = control.events("instance_state_batch")
    return [entry["data"] for batch in batches for entry in batch["data"]["entries"]]


def _lines(control: ControlProcess) -> list[dict[str, Any]]:
    return [entry for batch in control.events("log_batch") for entry in batch["data"]["entries"]]


def _job_events(control: ControlProcess) -> list[str]:
    names = [record["event"] for record in _distinct(control)]
    return [name for name in names if name.startswith("job_") or name in ("step_started", *STEP_ENDS)]


def _ends_of_pulls(control: ControlProcess) -> list[str]:
    phases = [record["data"]["data"]["phase"] for record in _distinct(control, "pull_progress")]
    return [phase for phase in phases if phase in ("completed", "failed")]


def _step_entries(control: ControlProcess) -> list[dict[str, Any]]:
    return [entry for batch in _distinct(control, "step_log") for entry in batch["data"]["entries"]]


def _distinct(control: ControlProcess, *names: str) -> list[dict[str, Any]]:
    """Events without those that came again, the same to the letter, in another life of control.

    That is one at most for each kill: the one that it had handled and not yet acknowledged.
    """
    found: dict[str, dict[str, Any]] = {}
    for record in control.events(*names):
        first = found.setdefault(json.dumps([record["event"], record["data"]]), record)
        assert first is record or first["pid"] != record["pid"], record
    return list(found.values())
