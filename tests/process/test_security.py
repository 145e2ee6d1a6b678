"""A running agent as somebody sees it who should not see or reach something."""

import json
import os
import socket
import stat
from pathlib import Path

import pytest
import requests

from tests.agent import Agent
from tests.conftest import AgentFactory

FAKE = Path(__file__).with_name("fake_llama.py")
OWN_KEY = "key-of-the-instance"
SECRETS = {
    "SOLAR_CONTROL_API_KEY": "key-of-control",
    "HARBOR_PASSWORD": "password-of-the-registry",
    "HF_TOKEN": "token-of-the-hub",
}


@pytest.fixture(scope="module")
def agent(shared_agents: AgentFactory) -> Agent:
    agent = shared_agents(LLAMA_SERVER_PATH=str(FAKE), **SECRETS)
    before = os.umask(0)
    agent.start()
    os.umask(before)
    return agent


@pytest.fixture(scope="module")
def instance(agent: Agent) -> dict[str, object]:
    """A running instance that printed its keys."""
    weights = agent.folder / "weights.gguf"
    weights.touch(mode=0o600)
    instance_id = agent.create(
        {
            "alias": "../../etc/x",
            "model": str(weights),
            "api_key": OWN_KEY,
            "host": "127.0.0.1",
            "extra_args": ["--print-environment"],
        }
    )
    assert agent.post(f"/instances/{instance_id}/start").status_code == 200
    return agent.instance(instance_id)


def status(agent: Agent, target: str, *headers: str) -> int:
    """Of the answer to a request that is sent just as it stands here."""
    lines = [f"GET {target} HTTP/1.1", "Host: localhost", "Connection: close", *headers]
    with socket.create_connection(("127.0.0.1", agent.port), timeout=30) as client:
        client.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        answer = client.makefile("rb").read()
    assert b"root:" not in answer
    return int(answer.split(b" ", 2)[1])


def test_the_key_of_an_instance_opens_nothing_of_the_agent(agent: Agent, instance: dict) -> None:
    for path in ("/instances", "/metrics", f"/instances/{instance['id']}/logs", "/jobs", "/models"):
        assert requests.get(agent.url + path, headers={"X-API-Key": OWN_KEY}, timeout=30).status_code == 401


@pytest.mark.parametrize(
    "target",
    [
        *("/ui/../instances", "/ui/..%2finstances", "/ui/%2e%2e/instances", "/ui//../instances"),
        *("/docs/static/../../instances", "/docs/static/..%2f..%2f..%2fetc/passwd"),
        *("/ui/..%2f..%2f..%2fetc%2fpasswd", "/ui/..\\..\\app.py", "/ui/%00", "/ui//etc/passwd"),
        *("//instances", "/health/../instances", "/instances/", "/INSTANCES", "/instances;x", "/health/x"),
    ],
)
def test_no_spelling_of_an_open_path_leads_to_a_closed_one(agent: Agent, target: str) -> None:
    assert status(agent, target) in (401, 404)


@pytest.mark.parametrize(
    "header",
    [
        *("SCRIPT_NAME: /ui", "PATH_INFO: /health", "X-Forwarded-Prefix: /ui", "X-Original-URL: /health"),
        *("X-Rewrite-URL: /health", "X-Forwarded-For: 127.0.0.1", "X-HTTP-Method-Override: OPTIONS"),
    ],
)
def test_no_header_makes_a_path_open(agent: Agent, header: str) -> None:
    assert status(agent, "/instances", header) in (400, 401)
    assert status(agent, "/ui/instances", header) in (401, 404)


def test_a_key_under_a_name_that_is_almost_right_is_none(agent: Agent) -> None:
    assert status(agent, "/instances", f"X_API_Key: {agent.key}") == 401
    assert status(agent, "/instances", f"Authorization: Basic {agent.key}") == 401
    assert status(agent, "/instances", f"Cookie: X-API-Key={agent.key}") == 401
    assert status(agent, "/instances", f"X-API-Key: {agent.key}") == 200


@pytest.mark.parametrize(
    "name", ["..%2f..%2fetc%2fpasswd", "%2e%2e", "*", "a%00b", "x" * 300, "-", "%2fetc%2fpasswd"]
)
def test_no_name_in_an_address_becomes_a_path(agent: Agent, name: str) -> None:
    for method, path in (
        ("GET", f"/instances/{name}/logs"),
        ("GET", f"/instances/{name}/logs?run=1"),
        ("DELETE", f"/instances/{name}"),
        ("GET", f"/jobs/{name}"),
        ("DELETE", f"/jobs/{name}"),
        ("DELETE", f"/models/{name}"),
        ("DELETE", f"/models/pulls/{name}"),
        ("DELETE", f"/resources/reservations/{name}"),
    ):
        assert agent.request(method, path).status_code in (404, 405), (method, path)


def test_others_on_this_machine_can_read_no_file_that_holds_a_secret(agent: Agent, instance: dict) -> None:
    files = [path for path in agent.folder.rglob("*") if path.is_file()]
    readable = {path.name for path in files if path.stat().st_mode & 0o077}
    assert readable <= {"agent.log"}, "what it prints, which whoever started it keeps"
    assert stat.S_IMODE((agent.folder / "logs").stat().st_mode) == 0o700
    assert OWN_KEY in (agent.folder / "config.json").read_text(), "there was something to hide"


def test_others_on_this_machine_can_change_nothing_whatever_the_umask(agent: Agent, instance: dict) -> None:
    made = [path for path in agent.folder.rglob("*") if path != agent.output]
    assert [path for path in made if path.stat().st_mode & stat.S_IWOTH] == []
    assert {"jobs", "logs", "config.json"} <= {path.name for path in made}


def test_answers_hold_no_secret_but_an_instances_own_key(agent: Agent, instance: dict) -> None:
    document = agent.get("/openapi.json").json()
    paths = [path for path, operations in document["paths"].items() if "get" in operations]
    assert len(paths) > 10
    for path in paths:
        text = agent.get(path.replace("{instance_id}", str(instance["id"]))).text
        shown = [key for key in (agent.key, *SECRETS.values()) if key in text]
        assert shown == [], path
    assert json.loads(agent.get(f"/instances/{instance['id']}").text)["config"]["api_key"] == OWN_KEY


def test_open_paths_tell_nothing_of_what_is_served(agent: Agent, instance: dict) -> None:
    config = instance["config"]
    private = [agent.key, *SECRETS.values(), *(config[name] for name in ("api_key", "alias", "model"))]
    for path in ("/", "/health", "/docs", "/openapi.json", "/ui/"):
        answer = requests.get(agent.url + path, timeout=30)
        assert answer.status_code == 200
        assert [text for text in (*private, str(instance["id"])) if text in answer.text] == [], path


def test_a_log_that_is_read_from_its_file_shows_no_key(agent: Agent, instance: dict) -> None:
    instance_id = instance["id"]
    lines = agent.get(f"/instances/{instance_id}/logs?run=1").text
    assert "key ***" in lines
    assert agent.post(f"/instances/{instance_id}/stop").status_code == 200
    assert agent.request("DELETE", f"/instances/{instance_id}").status_code == 200
    of_deleted = agent.get(f"/instances/{instance_id}/logs").text
    assert "key ***" in of_deleted
    assert not [key for key in (agent.key, OWN_KEY, *SECRETS.values()) if key in lines + of_deleted]
