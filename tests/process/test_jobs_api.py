"""The REST calls on jobs, as callers see them."""

import shutil

import pytest
from flask import Flask
from flask_smorest import Api

from solarhost.api import errors
from solarhost.api.jobs import blueprint
from solarhost.places import Places
from tests.agent import wait_until
from tests.jobs_fixtures import Jobs, body, step, waiting


@pytest.fixture
def client(jobs: Jobs):
    app = Flask("jobs")
    app.config |= {"API_TITLE": "t", "API_VERSION": "1", "OPENAPI_VERSION": "3.0.3"}
    Api(app).register_blueprint(blueprint(jobs.service, Places(8)))
    errors.register(app)
    return app.test_client()


def test_a_job_from_its_submission_to_its_end(client, jobs: Jobs):
    sent = body("demo-001", step("hello", "echo hello"), submission_id="sub", correlation_id="cor")
    accepted = client.post("/jobs", json=sent)
    assert accepted.status_code == 202
    assert accepted.json == {
        "job_id": "demo-001",
        "status": "running",
        "workspace_path": str(jobs.folder / "demo-001"),
        "submission_id": "sub",
        "correlation_id": "cor",
    }
    assert client.post("/jobs", json=sent).status_code == 409
    jobs.ended("demo-001")
    shown = client.get("/jobs/demo-001")
    assert shown.status_code == 200
    assert {
        "job_id", "name", "status", "current_step_index", "workspace_path", "created_at", "started_at",
        "finished_at", "retention_hours", "error_message", "submission_id", "correlation_id", "steps",
    } <= set(shown.json)  # fmt: skip
    assert (shown.json["status"], shown.json["retention_hours"]) == ("completed", 24.0)
    one = shown.json["steps"][0]
    assert {
        "name", "status", "container_id", "started_at", "finished_at", "duration_s", "exit_code",
        "error_message", "log_file", "recent_logs",
    } <= set(one)  # fmt: skip
    assert one["log_file"] == str(jobs.folder / "demo-001/logs/hello.log")
    assert [(entry["seq"], entry["stream"], entry["line"]) for entry in one["recent_logs"]] == [
        (1, "stdout", "hello")
    ]
    assert [job["job_id"] for job in client.get("/jobs").json] == ["demo-001"]
    assert client.delete("/jobs/demo-001").status_code == 409


def test_the_log_of_a_step_is_read_while_it_runs_and_afterwards(client, jobs: Jobs):
    steps = waiting("one", "seq 1 2500"), step("two", "true")
    client.post("/jobs", json=body("logs", *steps))
    address = "/jobs/logs/steps/one/logs"
    wait_until(lambda: len(jobs.heard.entries("logs")) >= 2500, 30, "its lines")
    assert client.get("/jobs/logs/steps/two/logs").json == []
    for end_it in (True, False):
        lines = client.get(address).json
        assert [(one["seq"], one["line"]) for one in lines] == [(n, str(n)) for n in range(1501, 2501)]
        assert len(client.get(f"{address}?tail=10000").json) == 2500
        assert [one["seq"] for one in client.get(f"{address}?since=2498").json] == [2499, 2500]
        assert client.get(f"{address}?since=9999").json == []
        if end_it:
            jobs.engine.client.kill(jobs.service.get("logs").steps[0].container_id, "TERM")
            jobs.ended("logs")
    for unknown in ("/jobs/logs/steps/three/logs", "/jobs/other/steps/one/logs"):
        assert client.get(unknown).status_code == 404
    assert client.get(f"{address}?tail=-1").status_code == 422


def test_a_cancelled_job_is_gone(client, jobs: Jobs):
    client.post("/jobs", json=body("waits", waiting("one")))
    wait_until(lambda: jobs.heard.entries("waits"), 30, "the step to run")
    gone = client.delete("/jobs/waits")
    assert (gone.status_code, gone.json) == (200, {"detail": "cancelled", "job_id": "waits"})
    assert client.get("/jobs/waits").status_code == 404
    assert client.delete("/jobs/waits").status_code == 404
    assert client.post("/jobs", json=body("waits", step("one", "true"))).status_code == 202
    assert jobs.ended("waits").status == "completed"


ONE = step("one", "true")
BAD = {
    "a path as id": (400, body("../x", ONE)),
    "an id with two dots": (400, body("a..b", ONE)),
    "an empty id": (400, body("", ONE)),
    "no steps": (400, body("bad")),
    "a path as step name": (400, body("bad", step("a/b", "true"))),
    "dots as step name": (400, body("bad", step("..", "true"))),
    "an empty step name": (400, body("bad", step("", "true"))),
    "a step name of 300 characters": (400, body("bad", step("a" * 300, "true"))),
    "doubled step names": (400, body("bad", ONE, ONE)),
    "an empty gpu": (400, body("bad", step("one", "true", gpu={}))),
    "gpu.count 0": (400, body("bad", step("one", "true", gpu={"count": 0}))),
    "gpu.count -2": (400, body("bad", step("one", "true", gpu={"count": -2}))),
    "gpu.count beyond the inventory": (400, body("bad", step("one", "true", gpu={"count": 3}))),
    "a GPU that is not there": (400, body("bad", step("one", "true", gpu={"device_ids": ["2"]}))),
    "no device ids": (400, body("bad", step("one", "true", gpu={"device_ids": []}))),
    "gpu: true": (422, body("bad", step("one", "true", gpu=True))),
    "an environment value that is a number": (422, body("bad", step("one", "true", environment={"A": 1}))),
    "an environment name with =": (400, body("bad", step("one", "true", environment={"A=B": "1"}))),
    "no image": (400, body("bad", step("one", "true", image=" "))),
    "an open quote": (400, body("bad", step("one", "echo 'a"))),
    "an empty command": (400, body("bad", step("one", ""))),
    "a command of numbers": (422, body("bad", step("one", [1]))),
    "a negative retention": (422, body("bad", ONE, retention_hours=-1)),
    "a name that is missing": (422, {"job_id": "bad", "steps": [ONE]}),
    "more disk than there is": (507, body("bad", ONE, min_free_disk_gb=10**6)),
}


def test_bad_input_is_refused_and_leaves_nothing(client, jobs: Jobs):
    jobs.gpu_count = 2
    before = sorted(jobs.folder.rglob("*"))
    answered = {name: client.post("/jobs", json=sent).status_code for name, (_, sent) in BAD.items()}
    assert answered == {name: status for name, (status, _) in BAD.items()}
    assert client.get("/jobs").json == []
    assert sorted(jobs.folder.rglob("*")) == before
    assert jobs.heard.events == []


def test_too_many_gpus_get_the_count(client, jobs: Jobs):
    jobs.gpu_count = 2
    refused = client.post("/jobs", json=body("gpus", step("one", "true", gpu={"count": 3})))
    detail = refused.json["detail"]
    assert (detail["error"], detail["requested"], detail["available_count"]) == ("gpu_unavailable", 3, 2)


def test_too_little_disk_gets_the_figures(client):
    refused = client.post("/jobs", json=body("disk", ONE, min_free_disk_gb=10**6))
    detail = refused.json["detail"]
    assert (detail["error"], detail["required_gb"]) == ("insufficient_storage", 10**6)
    assert 0 < detail["available_gb"] < 10**6


def test_a_folder_that_is_nobodys_workspace_is_left_alone(client, jobs: Jobs):
    (jobs.folder / "taken").mkdir()
    (jobs.folder / "taken" / "thesis.txt").write_text("mine")
    assert client.post("/jobs", json=body("taken", ONE)).status_code == 409
    assert (jobs.folder / "taken" / "thesis.txt").read_text() == "mine"
    assert client.get("/jobs/taken").status_code == 404
    shutil.rmtree(jobs.folder / "taken")


def test_ids_from_the_address_never_become_paths(client):
    for job_id in ("..%2F..%2Fetc", "..", "a%00b", ".records"):
        assert client.get(f"/jobs/{job_id}").status_code == 404
        assert client.delete(f"/jobs/{job_id}").status_code in (404, 405)
