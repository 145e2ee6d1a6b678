"""The REST calls, as callers see them."""

import json

import pytest
from flask import Flask
from flask_smorest import Api

from solarhost.api import errors
from solarhost.api.resources import Snapshot, blueprint
from tests.resources_fakes import FakeJob

pytest_plugins = ["tests.resources_fixtures"]

BODY = {"job_id": "job-1", "workload_type": "training", "vram_gb": 16.0, "ram_gb": 0.5}


@pytest.fixture
def client(two_gpus):
    app = Flask("resources")
    app.config |= {"API_TITLE": "t", "API_VERSION": "1", "OPENAPI_VERSION": "3.0.3"}
    errors.register(app)
    Api(app).register_blueprint(blueprint(two_gpus))
    return app.test_client()


def test_a_reservation_from_its_promise_to_its_release(client):
    made = client.post("/resources/reservations", json={**BODY, "ttl_seconds": 3600, "requester": "nova"})
    assert made.status_code == 201
    assert made.json["gpu_ids"] == [1]
    assert made.json["disk_gb"] == 0
    shown = client.get("/resources")
    assert shown.status_code == 200
    assert shown.json["reservations"] == [made.json]
    assert Snapshot().validate(shown.json) == {}, "the documented shape is another"
    gone = client.delete(f"/resources/reservations/{made.json['id']}")
    assert (gone.status_code, gone.json) == (200, {"detail": "released", "id": made.json["id"]})
    assert client.delete(f"/resources/reservations/{made.json['id']}").status_code == 404
    assert client.get("/resources").json["reservations"] == []


def test_the_answer_is_the_same_bytes_as_what_is_pushed(client, two_gpus):
    client.post("/resources/reservations", json=BODY)
    body = client.get("/resources").data
    pushed = json.dumps(two_gpus.snapshot(), separators=(",", ":")).encode()
    assert pushed == two_gpus.snapshot_bytes()
    assert set(json.loads(body)) == set(json.loads(pushed))


def test_a_request_that_does_not_fit_gets_the_figures(client):
    refused = client.post("/resources/reservations", json={**BODY, "vram_gb": 25, "gpu_ids": ["1"]})
    assert refused.status_code == 409
    assert refused.json == {
        "error": "capacity_exceeded",
        "detail": "GPU 1 (Big): 25.0 GB vram requested, 24.0 GB available",
        "dimension": "vram",
        "requested_gb": 25.0,
        "available_gb": 24.0,
        "device_index": 1,
    }


def test_a_running_reservation_stays(client, jobs):
    made = client.post("/resources/reservations", json=BODY).json
    jobs["job-1"] = FakeJob()
    refused = client.delete(f"/resources/reservations/{made['id']}")
    assert refused.status_code == 409
    assert "job-1 is running" in refused.json["detail"]


@pytest.mark.parametrize(
    "change",
    [
        {"vram_gb": -1},
        {"ram_gb": -0.1},
        {"disk_gb": -1},
        {"vram_gb": "NaN"},
        {"vram_gb": 1e300},
        {"ram_gb": None},
        {"job_id": ""},
        {"job_id": None},
        {"workload_type": "mining"},
        {"ttl_seconds": 0},
        {"ttl_seconds": -5},
        {"ttl_seconds": 1e300},
        {"ttl_seconds": 60, "expires_at": "2999-01-01T00:00:00Z"},
        {"expires_at": "soon"},
        {"gpu_count": 0},
        {"gpu_count": 1.5},
        {"gpu_count": 2, "gpu_ids": [0]},
        {"gpu_count": 2, "gpu_ids": [1, 1]},
        {"gpu_ids": []},
        {"gpu_ids": [True]},
        {"gpu_ids": [None]},
    ],
)
def test_an_invalid_request_changes_nothing(client, change):
    assert client.post("/resources/reservations", json=BODY | change).status_code == 422
    assert client.get("/resources").json["reservations"] == []


def test_a_request_needs_a_job_and_nothing_else(client):
    assert client.post("/resources/reservations", json={"ram_gb": 0.5}).status_code == 422
    made = client.post("/resources/reservations", json={"job_id": "job-1"})
    assert (made.status_code, made.json["vram_gb"], made.json["gpu_ids"]) == (201, 0.0, [])
