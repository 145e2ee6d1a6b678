"""Control that dies, hangs, refuses or hangs up: the link comes back, and nothing is lost or left over."""

import itertools
import json
import logging
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from solarhost.control import session
from tests.control_faults import STEPS, FaultyServer
from tests.control_host import KEY, Host, job_ended, log_lines, pull
from tests.control_process import ControlProcess, wait_for
from tests.tls_proxy import TlsProxy, make_certificate

IMPATIENT = {"ws_reconnect_delay": 0.02, "ws_reconnect_max_delay": 0.05}


def state(host: Host) -> str:
    return str(host.link.status()["state"])


def is_quiet(host: Host) -> bool:
    return state(host) == "registered" and not any(host.link.status()["queued"].values())


def ended_jobs(control: ControlProcess) -> list[str]:
    return [record["data"]["job_id"] for record in control.events("job_completed")]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_every_end_arrives_once_whatever_control_does(make_control, make_host):
    """Control is gone, hangs up at each step of the handshake, or answers nonsense, in any order."""
    control = make_control()
    host = make_host(control.url, **IMPATIENT)
    wait_for(lambda: is_quiet(host), "registered")
    files, threads = open_files(), threading.active_count()
    numbers = itertools.count()
    expected = []

    def end_a_job() -> None:
        expected.append(f"job-{(number := next(numbers))}")
        host.link.publish(job_ended(number))

    steps = list(STEPS)
    random.Random(7).shuffle(steps)
    while steps:
        end_a_job()
        wait_for(lambda: is_quiet(host), "all is acknowledged")
        control.kill()
        end_a_job()
        for step in [steps.pop() for _ in range(min(5, len(steps)))]:
            with FaultyServer(control.port, step) as faulty:
                wait_for(lambda server=faulty: server.served >= 2, f"attempts at {step}")
                end_a_job()
        wait_for(lambda: host.link.host_id is None, "the loss is seen")
        control.start()
        end_a_job()
        wait_for(lambda: is_quiet(host), "registered again")
    assert Counter(ended_jobs(control)) == Counter(expected)
    assert ended_jobs(control) == expected
    wait_for(lambda: host.delivered == expected, "the host knows what arrived")
    assert control.sessions() == ["gpu-1"]
    wait_for(lambda: threading.active_count() <= threads, "no threads are left")
    assert open_files() <= files


def test_a_control_that_is_killed_while_events_flow_gets_the_one_under_way_again_and_no_other(
    make_control, make_host
):
    control = make_control()
    host = make_host(control.url, **IMPATIENT)
    wait_for(lambda: is_quiet(host), "registered")
    kills, count = 3, 150
    for number in range(count):
        host.link.publish(job_ended(number))
    for kill in range(kills):
        wait_for(lambda kill=kill: len(ended_jobs(control)) > 40 * kill, "events")
        control.kill()
        control.start()
    wait_for(lambda: is_quiet(host), "all events", timeout_s=60)
    arrived = control.events("job_completed")
    assert list(dict.fromkeys(ended_jobs(control))) == [f"job-{number}" for number in range(count)]
    again = [one for one, next_one in itertools.pairwise(arrived) if one["data"] == next_one["data"]]
    assert len(arrived) == count + len(again)
    assert len({one["pid"] for one in again}) == len(again) <= kills
    assert host.delivered == [f"job-{number}" for number in range(count)]


def test_an_event_that_control_has_no_handler_for_holds_up_nothing(tmp_path, make_host, monkeypatch):
    monkeypatch.setattr(session, "ACKNOWLEDGE_S", 2.0)
    control = ControlProcess(tmp_path, (KEY,), ("--deaf-to", "pull_progress")).start()
    try:
        host = make_host(control.url, ws_silence_timeout=1.0)
        for number in range(15):
            host.link.publish(pull("completed"))
            host.link.publish(job_ended(number))
        wait_for(lambda: len(ended_jobs(control)) == 15 and is_quiet(host), "the other events")
    finally:
        control.kill()


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("http_502", "HTTP 502"),
        ("http_401", "HTTP 401"),
        ("no_http", "no Socket.IO server"),
        ("strange_greeting", "no Socket.IO server"),
        ("left", "the connection ended"),
    ],
)
def test_the_reason_is_shown(make_host, step, reason):
    with FaultyServer(0, step) as faulty:
        host = make_host(f"http://127.0.0.1:{faulty.port}")
        wait_for(lambda: reason in str(host.link.status()["error"]), f"{reason} is shown")
        assert state(host) == ("unauthorized" if step == "http_401" else "connecting")


def test_a_frozen_control_is_given_up_and_nothing_arrives_twice_when_it_wakes_up(make_control, make_host):
    control = make_control()
    host = make_host(control.url, ws_silence_timeout=1.0, **IMPATIENT)
    wait_for(lambda: is_quiet(host), "registered")
    control.freeze()
    for number in range(3):
        host.link.publish(job_ended(number))
    wait_for(lambda: "no sign of life" in str(host.link.status()["error"]), "the silence is seen")
    host.link.publish(pull("completed"))
    control.thaw()
    wait_for(lambda: is_quiet(host) and control.events("pull_progress"), "the kept events")
    assert ended_jobs(control) == ["job-0", "job-1", "job-2"]
    wait_for(lambda: control.sessions() == ["gpu-1"], "one session is left")
    assert len(control.events("pull_progress")) == 1


def test_a_short_freeze_is_waited_out(make_control, make_host):
    control = make_control()
    host = make_host(control.url)
    wait_for(lambda: is_quiet(host), "registered")
    control.freeze()
    host.link.publish(job_ended(1))
    host.link.publish(log_lines(0, 3))
    wait_for(lambda: host.link.status()["queued"]["kept"] == 1, "the event waits")
    control.thaw()
    wait_for(lambda: is_quiet(host) and control.events("log_batch"), "the events")
    assert ended_jobs(control) == ["job-1"]
    assert len(control.records("connect")) == 1


def test_hundreds_of_connections_leave_no_thread_and_no_descriptor(make_host):
    with FaultyServer(0, "acknowledged") as faulty:
        host = make_host(
            f"http://127.0.0.1:{faulty.port}", ws_reconnect_delay=0.01, ws_reconnect_max_delay=0.01
        )
        wait_for(lambda: faulty.served >= 5, "the first connections")
        files, threads = open_files(), threading.active_count()
        wait_for(lambda: faulty.served >= 200, "200 connections", timeout_s=60)
        # A connection may be open in this moment, with its socket and two threads at each end.
        wait_for(lambda: threading.active_count() <= threads and open_files() <= files, "nothing is left")
        assert host.link.status()["connections"] >= 150


def test_a_slow_control_gets_what_it_can_take_and_every_other_line_is_counted(tmp_path, make_host):
    control = ControlProcess(tmp_path, (KEY,), ("--log-delay-s", "0.05")).start()
    try:
        host = make_host(control.url)
        wait_for(lambda: is_quiet(host), "registered")
        published = 60_000
        for first in range(0, published, 200):
            host.link.publish(log_lines(first, 200))
        assert host.link.status()["queued"]["logs"] <= 10_000
        host.link.publish(job_ended(1))
        wait_for(lambda: is_quiet(host) and ended_jobs(control) == ["job-1"], "all is sent")
        arrived = sum(record["lines"] for record in control.events("log_batch"))
        dropped = host.link.status()["dropped"]["logs"]
        assert dropped > 0
        assert arrived + dropped == published
    finally:
        control.kill()


@pytest.mark.parametrize("condition", ["alive", "frozen", "dead"])
def test_the_link_ends_in_time_whatever_control_does(make_control, make_host, condition):
    control = make_control()
    host = make_host(control.url, ws_reconnect_delay=60.0)
    wait_for(lambda: is_quiet(host), "registered")
    if condition == "frozen":
        control.freeze()
    elif condition == "dead":
        control.kill()
        wait_for(lambda: host.link.host_id is None, "the loss is seen")
    host.link.publish(job_ended(1))
    began = time.monotonic()
    host.close(within_s=20.0)
    assert time.monotonic() - began < 10.0
    control.thaw() if condition == "frozen" else None
    assert not [thread for thread in threading.enumerate() if thread.name == "control"]


def test_the_link_ends_in_time_while_it_connects(make_host):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts in the kernel, and never answers
        host = make_host(f"http://127.0.0.1:{silent.getsockname()[1]}")
        silent.accept()[0].close()
        connection, _ = silent.accept()
        began = time.monotonic()
        host.close(within_s=20.0)
        assert time.monotonic() - began < 4.0
        connection.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls_port(make_control, certificate: tuple[str, str]) -> Iterator[int]:
    """A port of the server's, behind TLS."""
    proxy = TlsProxy(make_control().port, certificate)
    yield proxy.port
    proxy.close()


def test_a_certificate_that_nobody_vouches_for_is_refused(make_host, control_server, tls_port):
    host = make_host(f"https://127.0.0.1:{tls_port}")
    wait_for(lambda: "certificate verify failed" in str(host.link.status()["error"]), "the refusal")
    assert not control_server.records("connect")


@pytest.mark.parametrize("how", ["insecure", "ssl_cert_file", "requests_ca_bundle"])
def test_a_private_certificate_can_be_accepted(make_host, control_server, tls_port, certificate, how):
    host = make_host(f"wss://127.0.0.1:{tls_port}", **{how: True if how == "insecure" else certificate[0]})
    wait_for(lambda: is_quiet(host), "registered")
    host.link.publish(job_ended(1))
    wait_for(lambda: ended_jobs(control_server) == ["job-1"], "the event")


def test_a_busy_connection_over_tls_holds(make_host, control_server, tls_port, certificate):
    host = make_host(f"https://127.0.0.1:{tls_port}", ssl_cert_file=certificate[0])
    wait_for(lambda: is_quiet(host), "registered")
    for number in range(900):
        host.link.publish(job_ended(number))
        host.link.publish(log_lines(number * 5, 5))
    wait_for(lambda: is_quiet(host) and len(ended_jobs(control_server)) >= 900, "all events")
    assert host.link.status()["connections"] == 1
    assert len(ended_jobs(control_server)) == 900


def test_the_key_is_in_the_handshake_and_nowhere_else(make_control, make_host, caplog):
    with caplog.at_level(logging.DEBUG):
        for name in ("socketio.client", "engineio.client", "websocket"):
            logging.getLogger(name).setLevel(logging.DEBUG)
        control = make_control()
        host = make_host(control.url, **IMPATIENT)
        wait_for(lambda: is_quiet(host), "registered")
        control.do("disconnect")
        wait_for(lambda: host.link.status()["connections"] == 2 and is_quiet(host), "registered again")
        control.do("refuse", key=KEY)
        control.do("disconnect")
        wait_for(lambda: state(host) == "unauthorized", "refused")
    assert caplog.text
    assert KEY not in caplog.text
    assert KEY not in json.dumps(host.link.status())
    assert KEY not in json.dumps(control.events())
