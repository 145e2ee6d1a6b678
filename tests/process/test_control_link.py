"""The link against a real python-socketio server in a process of its own."""

import threading
from typing import Any

import pytest

from solarhost.events import InstancesChanged, InstanceState, JobEvent, StepLogLines
from tests.control_host import KEY, Host, flat, job_ended, log_lines, pull
from tests.control_process import ControlProcess, wait_for

INTRODUCTION = ["registration", "instances_update", "host_health"]


def state(host: Host) -> str:
    return str(host.link.status()["state"])


def is_quiet(host: Host) -> bool:
    return not any(host.link.status()["queued"].values())


def names(control: ControlProcess) -> list[str]:
    return [record["event"] for record in control.events()]


def test_a_known_host_introduces_itself_and_is_acknowledged(make_control, make_host):
    control = make_control()
    host = make_host(control.url)
    wait_for(lambda: names(control) == INTRODUCTION, "the introduction")
    status = host.link.status()
    assert (status["state"], status["host_id"], status["connections"]) == ("registered", "host-1234", 1)
    assert status["last_contact"] is not None
    assert host.link.host_id == "host-1234"
    assert host.link.reconnect() == "already_connected"
    assert not control.invalid()
    (connect,) = control.records("connect")
    assert connect["auth"] == {"api_key": KEY, "host_name": "gpu-1"}
    assert connect["origin"] is None


def test_a_path_and_a_websocket_scheme_in_the_address_do_no_harm(make_control, make_host):
    control = make_control()
    make_host(f"ws://127.0.0.1:{control.port}/ws/host-channel, http://127.0.0.1:1")
    wait_for(lambda: names(control) == INTRODUCTION, "the introduction")


def test_the_key_for_control_is_the_one_that_was_set_for_it(make_control, make_host):
    control = make_control(known_keys=("control-key",))
    make_host(control.url, solar_control_api_key="control-key")
    wait_for(lambda: names(control) == INTRODUCTION, "the introduction")


def test_all_that_happens_reaches_control_in_order(make_control, make_host):
    control = make_control()
    host = make_host(control.url)
    wait_for(lambda: state(host) == "registered" and len(names(control)) == 3, "the introduction")
    runtime = {"busy": True, "phase": "prefill", "active_slots": 1}
    step = {
        "job_id": "j",
        "step_name": "s",
        "step_index": 0,
        "stream": "stdout",
        "timestamp": "2026-05-21T19:00:00Z",
    }
    for event in (
        log_lines(7, 3),
        InstanceState("i-1", "2026-05-21T19:00:00Z", {**runtime, "instance_id": "i-1"}),
        pull("downloading"),
        StepLogLines([{**step, "seq": 1, "line": "x"}]),
        JobEvent(
            "step_log",
            {"entries": [{**step, "seq": 2, "line": "", "completed": True, "exit_code": 0}]},
            "uid",
            1,
        ),
        job_ended(1),
        pull("completed"),
        InstancesChanged([flat("running", port=3500)]),
    ):
        host.link.publish(event)
    wait_for(
        lambda: names(control)[3:] and names(control)[-1] == "instances_update" and is_quiet(host),
        "the events",
    )
    assert names(control)[3:] == [
        "log_batch",
        "instance_state_batch",
        "pull_progress",
        "step_log",
        "step_log",
        "job_completed",
        "pull_progress",
        "instances_update",
    ]
    assert not control.invalid()
    lines = control.events("log_batch")[0]["data"]["entries"]
    assert [entry["seq"] for entry in lines] == [7, 8, 9]


def test_the_health_report_comes_again_and_again_with_all_resources(make_control, make_host):
    control = make_control()
    host = make_host(control.url, health_interval_s=0.1)
    wait_for(lambda: len(control.events("host_health")) >= 4, "health reports")
    data = control.events("host_health")[-1]["data"]["data"]
    assert data["resources"] == host.resources
    assert list(data["resources"]) == list(host.resources)
    assert not control.invalid()


def test_a_pending_host_waits_and_says_everything_after_its_approval(make_control, make_host):
    control = make_control(known_keys=())
    host = make_host(control.url)
    wait_for(lambda: state(host) == "pending", "pending")
    host.link.publish(job_ended(1))
    host.link.publish(log_lines(0, 1))
    assert host.link.reconnect() == "already_connected"
    assert host.link.host_id is None
    control.do("approve")
    wait_for(lambda: control.events("job_completed"), "the kept event")
    assert names(control) == [*INTRODUCTION, "job_completed"]
    assert not [record for record in control.events() if record["pending"]]
    assert state(host) == "registered"


def test_each_further_acknowledgement_is_answered_with_an_introduction(make_control, make_host):
    control = make_control()
    make_host(control.url)
    wait_for(lambda: names(control) == INTRODUCTION, "the introduction")
    control.do("acknowledge")
    wait_for(lambda: names(control) == INTRODUCTION * 2, "the second introduction")


@pytest.mark.parametrize("known_keys", [(), (KEY,)])
def test_a_rejected_host_stays_away_until_it_is_asked_to_reconnect(make_control, make_host, known_keys):
    control = make_control(known_keys=known_keys)
    host = make_host(control.url, ws_reconnect_delay=0.01, ws_reconnect_max_delay=0.01)
    wait_for(lambda: state(host) == ("registered" if known_keys else "pending"), "connected")
    control.do("reject", reason="no room")
    wait_for(lambda: state(host) == "rejected", "rejected")
    assert "no room" in host.link.status()["error"]
    attempts = len(control.records("connect"))
    assert host.link.host_id is None
    assert host.link.reconnect() == "reconnecting"
    wait_for(lambda: len(control.records("connect")) == attempts + 1, "one more connection")
    wait_for(lambda: state(host) in ("pending", "registered"), "connected again")


def test_a_refused_key_is_tried_again(make_control, make_host):
    control = make_control()
    control.do("refuse", key=KEY)
    host = make_host(control.url)
    wait_for(lambda: state(host) == "unauthorized", "unauthorized")
    assert "unknown api key" in host.link.status()["error"]
    control.do("welcome", key=KEY)
    wait_for(lambda: state(host) == "registered", "registered")
    assert host.link.status()["error"] is None


def test_a_host_that_control_disconnects_comes_back(make_control, make_host):
    control = make_control()
    host = make_host(control.url)
    for round_ in range(1, 4):
        wait_for(lambda n=round_: len(control.events("host_health")) == n and host.link.host_id, "registered")
        control.do("disconnect")
    wait_for(lambda: len(control.events("host_health")) == 4, "registered again")
    assert control.sessions() == ["gpu-1"]


def test_reconnect_cuts_a_wait_short(make_control, make_host):
    control = make_control()
    control.kill()
    host = make_host(control.url, ws_reconnect_delay=300.0, ws_reconnect_max_delay=300.0)
    wait_for(lambda: host.link.status()["error"], "the first attempt fails")
    control.start()
    assert host.link.reconnect() == "reconnecting"
    wait_for(lambda: state(host) == "registered", "registered")


def test_events_of_a_disconnected_time_arrive_once_and_lines_do_not(make_control, make_host):
    control = make_control()
    host = make_host(control.url)
    wait_for(lambda: names(control) == INTRODUCTION, "the introduction")
    control.kill()
    wait_for(lambda: host.link.host_id is None, "the loss is seen")
    host.instances = [flat("failed")]
    for event in (
        InstancesChanged(host.instances),
        log_lines(0, 5),
        job_ended(1),
        pull("downloading"),
        pull("failed"),
    ):
        host.link.publish(event)
    control.start()
    wait_for(lambda: control.events("pull_progress") and is_quiet(host), "the kept events")
    assert names(control)[3:] == [*INTRODUCTION, "instances_update", "job_completed", "pull_progress"]
    assert control.events("pull_progress")[0]["data"]["data"]["phase"] == "failed"


def test_commands_come_over_the_link(make_control, make_host):
    control = make_control()
    host = make_host(control.url)
    wait_for(lambda: state(host) == "registered", "registered")
    answer = control.ask(id="c-1", action="logs", instance_id="i-1", params={"tail": 5})
    assert answer == {
        "id": "c-1",
        "ok": True,
        "status": 200,
        "body": {"did": "GET /instances/i-1/logs?tail=5"},
    }
    assert control.ask(id="c-2", action="format")["status"] == 422
    assert host.calls == [("GET", "/instances/i-1/logs?tail=5", None)]


def test_a_slow_command_holds_up_nothing(make_control, make_host):
    control = make_control()
    host = make_host(control.url)
    go_on = threading.Event()
    run = host.dispatch

    def dispatch(method: str, path: str, body: Any) -> tuple[int, object]:
        if path.endswith("/start"):
            go_on.wait(20)
        return run(method, path, body)

    host.dispatch = dispatch
    wait_for(lambda: state(host) == "registered", "registered")
    control.do("command", id="slow", action="start", instance_id="i-1")
    assert control.ask(id="quick", action="list")["id"] == "quick"
    host.link.publish(job_ended(1))
    wait_for(lambda: control.events("job_completed"), "an event")
    go_on.set()
    wait_for(lambda: control.answer("slow"), "the slow answer")


def test_the_end_of_the_program_sends_what_is_left(make_control, make_host):
    control = make_control()
    host = make_host(control.url)
    wait_for(lambda: names(control) == INTRODUCTION, "the introduction")
    host.link.publish(job_ended(1))
    host.link.publish(log_lines(0, 3))
    host.close()
    assert names(control)[3:] == ["job_completed", "log_batch"]
    wait_for(lambda: control.records("disconnect"), "control sees the end")
    assert control.sessions() == []


def test_an_unsendable_payload_is_left_out_and_the_link_stays(make_control, make_host):
    control = make_control()
    host = make_host(control.url)
    wait_for(lambda: names(control) == INTRODUCTION, "the introduction")
    host.link.publish(InstancesChanged([{**flat(), "gpu_ids": {1, 2}}]))
    host.link.publish(job_ended(1))
    wait_for(lambda: control.events("job_completed") and is_quiet(host), "the next event")
    assert host.link.status()["connections"] == 1


def test_a_health_report_that_fails_does_not_end_the_link(make_control, make_host):
    control = make_control()
    host = make_host(control.url, health_interval_s=0.05)
    report, failures = host.health, []

    def health() -> Any:
        if len(failures) < 3:
            failures.append(1)
            raise OSError("the disk is away")
        return report()

    wait_for(lambda: names(control)[:3] == INTRODUCTION, "the introduction")
    host.health = health
    wait_for(lambda: len(failures) == 3, "reports that fail")
    reports = len(control.events("host_health"))
    wait_for(lambda: len(control.events("host_health")) > reports, "a report")
    assert len(control.records("connect")) == 1
