"""Metrics for Prometheus, read back with its own parser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families

from solarhost.host import Host
from tests.in_process import client_of, settings_in


@pytest.fixture
def client(tmp_path: Path) -> Iterator[FlaskClient]:
    host = Host(settings_in(tmp_path))
    host.resources.start()
    yield client_of(host)
    host.close(0)


def samples(client: FlaskClient) -> dict[tuple[str, ...], float]:
    answer = client.get("/metrics")
    assert answer.content_type.startswith("text/plain")
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_instances_are_counted_by_status_and_named(client: FlaskClient) -> None:
    config = {"backend_type": "llamacpp", "alias": 'a "quoted" one', "model": "/m.gguf"}
    made = client.post("/instances", json={"config": config}).get_json()["instance"]
    values = samples(client)
    assert values["solarhost_instances", "stopped"] == 1
    assert values["solarhost_instances", "running"] == 0
    names = sorted([made["id"], 'a "quoted" one'])
    assert values["solarhost_instance_starts_total", *names] == 0
    assert values["solarhost_instance_failed", *names] == 0


def test_resources_link_and_threads_are_there(client: FlaskClient) -> None:
    values = samples(client)
    assert values["solarhost_resource_bytes", "ram", "total"] > 0
    assert values["solarhost_resource_bytes", "available", "disk"] > 0
    assert ("solarhost_control_link_up",) not in values  # there is no solar-control
    assert values["process_start_time_seconds",] > 0
    assert values["solarhost_threads",] >= 1
    assert values["solarhost_loop_errors_total", "loop-metrics"] == 0


def test_jobs_and_pulls_are_counted(client: FlaskClient) -> None:
    values = samples(client)
    assert values["solarhost_jobs", "running"] == 0
    assert values["solarhost_pulls", "queued"] == 0
    assert values["solarhost_pulls_ended_total", "completed"] == 0


def test_every_metric_explains_itself(client: FlaskClient) -> None:
    text = client.get("/metrics").text
    families = list(text_string_to_metric_families(text))
    assert len(families) > 10
    assert all(family.documentation for family in families)
