"""Bodies and commands that are almost right: answered with what is wrong, in JSON, and nothing breaks."""

import json
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from solarhost.control.commands import Commands
from solarhost.host import Host
from solarhost.rest import InProcessRest
from tests.fuzz.strategies import any_json, mutated
from tests.in_process import KEY, client_of, settings_in

BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/instances"): {
        "config": {
            "backend_type": "llamacpp",
            "alias": "a",
            "model": "/m.gguf",
            "chat_template_kwargs": {"a": "true"},
            "tensor_split": "3,1",
            "extra_args": ["--parallel", "4"],
            "file_filters": ["*.gguf"],
            "port": 4000,
        },
        "gpu_ids": [0],
        "vram_gb": 1.5,
        "managed_by": "x",
    },
    ("PUT", "/instances/{id}"): {"config": {"alias": "b", "model_id": "m", "labels": ["x", "y"]}},
    ("POST", "/resources/reservations"): {
        "job_id": "j",
        "workload_type": "training",
        "ram_gb": 0.001,
        "ttl_seconds": 60,
    },
    ("POST", "/jobs"): {
        "job_id": "one",
        "name": "n",
        "steps": [
            {"name": "s", "image": "i", "command": ["a"], "environment": {"A": "b"}, "gpu": {"count": 1}},
            {"name": "t", "image": "i", "gpu": {"device_ids": ["0"]}},
        ],
        "training_config": {"a": [1]},
        "retention_hours": 1,
    },
    ("DELETE", "/models/m"): {"filters": ["*"]},
}
COMMAND = {
    "id": "c-1",
    "action": "create",
    "instance_id": "i",
    "params": BODIES["POST", "/instances"],
}
actions = st.sampled_from(["create", "get", "list", "update", "delete", "stop", "logs", "nothing"])


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> FlaskClient:
    """A client of an agent that was built but not started."""
    folder = tmp_path_factory.mktemp("bodies")
    settings = settings_in(folder, docker_host=f"unix://{folder}/docker.sock")
    settings.jobs_dir.mkdir()
    return client_of(Host(settings))


def refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def check(client: FlaskClient, method: str, path: str, body: bytes) -> None:
    answer = client.open(path, method=method, data=body, content_type="application/json")
    assert answer.status_code in (200, 201, 202, 400, 404, 409, 415, 422, 503, 507), answer.text
    json.loads(answer.data, parse_constant=refuse)


@pytest.mark.parametrize("call", BODIES, ids=" ".join)
@given(data=st.data())
def test_any_body(client: FlaskClient, call: tuple[str, str], data: st.DataObject) -> None:
    method, path = call
    if "{id}" in path:
        known = client.get("/instances").json or [
            client.post("/instances", json={"alias": "a", "model": "m"}).json["instance"]
        ]
        path = path.replace("{id}", known[0]["id"])
    body = data.draw(mutated(BODIES[call]) | any_json)
    check(client, method, path, json.dumps(body).encode())
    json.loads(client.get("/instances").data, parse_constant=refuse)


@given(st.binary(max_size=100))
def test_any_bytes_as_a_body(client: FlaskClient, body: bytes) -> None:
    for method, path in BODIES:
        check(client, method, path.replace("{id}", "x"), body)


@given(mutated(COMMAND) | any_json | actions.flatmap(lambda action: mutated({**COMMAND, "action": action})))
def test_any_command_of_solar_control(client: FlaskClient, command: Any) -> None:
    commands = Commands(InProcessRest(client.application, KEY), enabled=True)
    acknowledged = commands.answer(command)
    assert acknowledged["status"] in (200, 400, 404, 409, 422), acknowledged
    assert acknowledged["ok"] is (acknowledged["status"] == 200)
