"""Starts, signals and ends of the server's processes."""

import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from tests.agent import wait_until
from tests.served import Served

MakeServed = Callable[..., Served]
STOP_S = 1


def fails_with(served: Served) -> tuple[int, str]:
    code = served.spawn().wait(20)
    return code, served.log()


def test_term_stops_the_service_and_exits_with_0(served: Served) -> None:
    worker = served.worker
    assert served.stop() == 0
    assert served.notes == [f"started {worker}", f"stopped {worker}"]


def test_interrupt_stops_as_term_does(served: Served) -> None:
    worker = served.worker
    os.killpg(served.process.pid, signal.SIGINT)  # as a terminal does: to master and worker
    assert served.process.wait(10) == 0
    assert served.notes == [f"started {worker}", f"stopped {worker}"]


def test_quit_detaches(served: Served) -> None:
    worker = served.worker
    served.process.send_signal(signal.SIGQUIT)
    assert served.process.wait(10) == 0
    assert served.notes == [f"started {worker}", f"detached {worker}"]


def test_a_request_that_waits_does_not_delay_the_stop(served: Served) -> None:
    with served.connect(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n") as waiting:
        served.wait_for_note("waiting")
        assert served.stop() == 0
        assert b'"stopped":true' in waiting.recv(65536)


def test_a_service_that_does_not_stop_is_killed_in_time(make_served: MakeServed) -> None:
    served = make_served(CLOSE_S="60", STOP_TIMEOUT_S="1")
    served.start()
    began = time.monotonic()
    served.stop()
    assert time.monotonic() - began < 1 + 5
    assert served.left_alive() == []


def test_hang_up_never_starts_a_second_worker(served: Served) -> None:
    worker = served.worker
    for number in (signal.SIGHUP, signal.SIGTTIN, signal.SIGUSR2):
        served.process.send_signal(number)
    wait_until(lambda: served.log().count("not supported") == 3, 5, "three refusals in the log")
    os.kill(worker, signal.SIGHUP)
    assert served.worker == worker
    assert len(served.own_processes()) == 2


def test_a_killed_worker_is_replaced(served: Served) -> None:
    worker = served.worker
    os.kill(worker, signal.SIGKILL)

    def replaced() -> bool:
        try:
            return served.worker != worker
        except requests.RequestException:
            return False

    wait_until(replaced, 10, "a new worker")
    assert [note.split()[0] for note in served.notes] == ["started", "started"]


def test_a_worker_without_its_master_detaches_and_makes_room(served: Served) -> None:
    worker = served.worker
    served.process.kill()
    served.process.wait(5)
    served.spawn()  # waits for the old worker to give up the lock and the port
    wait_until(lambda: len(served.notes) == 3, 10, "a new worker")
    assert served.notes[:2] == [f"started {worker}", f"detached {worker}"]
    assert served.worker != worker
    assert len(served.own_processes()) == 2


def test_a_second_agent_on_the_same_files_is_refused(served: Served, make_served: MakeServed) -> None:
    second = make_served(CONFIG_FILE=str(served.folder / "config.json"))
    code, output = fails_with(second)
    assert code == 1
    assert re.fullmatch(rf"solar-host: another agent \(process {served.process.pid}\) uses .*\n", output)
    assert served.get("/health").status_code == 200


def test_a_taken_port_is_one_clear_line(make_served: MakeServed) -> None:
    served = make_served()
    with socket.create_server(("127.0.0.1", served.port)):
        code, output = fails_with(served)
    assert code == 1
    assert output.startswith(
        f"solar-host: can't listen on 127.0.0.1 port {served.port}: Address already in use"
    )
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"THREADS": "many"}, "THREADS='many' is not valid"),
        ({"GPU_TELEMETRY_OVERRIDE": "[1]"}, "GPU_TELEMETRY_OVERRIDE='[1]' is not valid"),
        ({"SOLAR_CONTROL_URL": "ftp://control"}, "SOLAR_CONTROL_URL is not an address"),
        ({"CONFIG_FILE": "/"}, "CONFIG_FILE='/' is not valid: it is a folder"),
        ({"API_KEY": "", "HOST": "0.0.0.0"}, "API_KEY is not set, and HOST=0.0.0.0 is reachable"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(
    make_served: MakeServed, settings: dict[str, str], words: str
) -> None:
    code, output = fails_with(make_served(**settings))
    assert code == 2
    assert output.startswith(f"solar-host: {words}")
    assert output.count("\n") == 1


def test_a_service_that_can_not_start_ends_the_agent(make_served: MakeServed) -> None:
    code, output = fails_with(make_served(FAIL_START="1"))
    assert code == 3
    assert "the service can't start today" in output
    assert "Traceback" not in output


def test_the_service_manager_is_told(make_served: MakeServed, manager: socket.socket) -> None:
    served = watched(make_served, manager)
    assert next_states(manager, 3) == ["READY=1", "WATCHDOG=1", "WATCHDOG=1"]
    served.stop()
    while (state := manager.recv(100)) == b"WATCHDOG=1":
        pass
    assert state.startswith(b"STOPPING=1")


@pytest.mark.parametrize("part", ["poller", "application"])
def test_an_agent_that_hangs_gives_no_sign_of_life(
    make_served: MakeServed, manager: socket.socket, part: str
) -> None:
    served = watched(make_served, manager)
    assert next_states(manager, 2) == ["READY=1", "WATCHDOG=1"]
    worker = served.worker
    if part == "poller":
        os.kill(worker, signal.SIGSTOP)
    else:
        served.post("/hang")
    manager.settimeout(1)  # of which each 0.1 s would have had one
    with pytest.raises(TimeoutError):
        next_states(manager, 5)
    served.process.send_signal(signal.SIGQUIT)  # as the watchdog does
    assert served.process.wait(STOP_S + 10) == 0
    assert served.left_alive() == []


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The service manager's end of the notification socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(10)
        yield manager


def watched(make_served: MakeServed, manager: socket.socket) -> Served:
    """A running server that has to give a sign of life every 0.3 s."""
    address = manager.getsockname()
    served = make_served(NOTIFY_SOCKET=address, WATCHDOG_USEC="300000", STOP_TIMEOUT_S=str(STOP_S))
    served.start()
    return served


def next_states(manager: socket.socket, count: int) -> list[str]:
    return [manager.recv(100).decode().splitlines()[0] for _ in range(count)]


def test_keys_are_not_logged(make_served: MakeServed) -> None:
    served = make_served(LOG_LEVEL="DEBUG", ACCESS_LOG="true")
    served.start()
    served.get(f"/fail?api_key={served.key}")
    served.stop()
    assert '"GET /fail"' in served.log()
    assert served.key not in served.log()
