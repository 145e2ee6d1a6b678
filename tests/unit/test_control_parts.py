"""The small parts of the link: waits, reports of drops, payloads, the state."""

import logging

import pytest
from jsonschema import Draft202012Validator

from solarhost.control import payloads
from solarhost.control.backoff import Backoff
from solarhost.control.drops import DropReport
from solarhost.control.state import LinkRecord, LinkState
from solarhost.errors import SettingsError, Unavailable
from tests.control_host import Host, flat, job_ended
from tests.control_schemas import SCHEMAS


def test_waits_double_up_to_the_longest_and_begin_again_after_a_success():
    backoff = Backoff(1.0, 30.0)
    waits = [backoff.next() for _ in range(8)]
    for wait, full in zip(waits, [1, 2, 4, 8, 16, 30, 30, 30], strict=True):
        assert full / 2 <= wait <= full
    backoff.reset()
    assert backoff.next() <= 1.0


def test_drops_are_reported_once_a_minute(caplog):
    totals = {"logs": 0, "kept": 0}
    now = 0.0
    report = DropReport(lambda: dict(totals), 60.0, clock=lambda: now)
    with caplog.at_level(logging.WARNING):
        for second in range(181):
            now = float(second)
            totals["logs"] += 10
            report.tick()
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 4
    assert "10 logs" in texts[0]
    assert all("600 logs" in text for text in texts[1:])


def test_nothing_is_reported_when_nothing_was_dropped(caplog):
    now = 0.0
    report = DropReport(lambda: {"logs": 5}, 60.0, clock=lambda: now)
    now = 120.0
    report.tick()
    assert not caplog.records


def test_the_health_report_counts_instances_and_sums_up_the_reservations():
    host = Host("")
    host.instances = [flat("running"), flat("failed")]
    host.resources["reservations"] = [{"id": "res-1"}]
    data = host.health()
    Draft202012Validator(SCHEMAS["host_health"]).validate(payloads.host_health(data))
    assert (data["instance_count"], data["running_instance_count"]) == (2, 1)
    assert data["reservations"]["active_count"] == 1
    assert data["reservations"]["ram"] == host.resources["ram"]
    assert data["resources"] is host.resources


def test_unreadable_memory_and_disk_do_not_stop_the_health_report():
    data = payloads.health_data(
        [], "cpu", ["llamacpp"], "1", memory=None, disk=None, resources={"reservations": []}
    )
    assert data["memory"] is None
    assert not [key for key in data if key.startswith("disk_")]


def test_a_host_alone_queues_nothing_and_starts_nothing():
    host = Host("")
    host.link.start()
    host.link.publish(job_ended(1))
    status = host.link.status()
    assert status["state"] == "disabled"
    assert not any(status["queued"].values())
    assert host.link.host_id is None
    with pytest.raises(Unavailable, match="SOLAR_CONTROL_URL"):
        host.link.reconnect()
    host.close()


def test_a_bad_address_is_found_at_once():
    with pytest.raises(SettingsError):
        Host("ftp://control")


def test_the_state_tells_since_when_and_what_is_news():
    record = LinkRecord("http://h")
    before = record.as_json()["since"]
    assert not record.move(LinkState.CONNECTING)
    assert record.move(LinkState.CONNECTING, error="refused")
    assert not record.move(LinkState.CONNECTING, error="refused")
    assert record.as_json()["since"] == before
    assert record.move(LinkState.REGISTERED, host_id="h-1")
    assert record.host_id == "h-1"
    assert record.as_json()["since"] > before
