"""Small parts of the supervision: endings, ports, process identity, state streams."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import pytest

from solarhost.instances import census
from solarhost.instances.ending import Exit, explain
from solarhost.instances.ports import NoSuchAddress, Ports, PortTaken, base_url
from solarhost.instances.process import (
    Mark,
    ProcessId,
    command_digest,
    host_identity,
    listens,
    marked,
    members,
    read_mark,
    spawn,
    start_mark,
    wait_gone,
)
from solarhost.instances.states import StateFeed
from solarhost.instances.status import MOVES, Reason, Status
from tests.agent import wait_until


def test_every_status_can_be_left_and_settled_ones_hold_no_process() -> None:
    assert set(MOVES) == set(Status)
    assert all(MOVES[status] for status in Status)
    assert [status for status in Status if status.settled] == [Status.STOPPED, Status.FAILED]
    assert Status.RUNNING not in MOVES[Status.STOPPED], "nothing runs that was not started"


@pytest.mark.parametrize(
    ("end", "lines", "out_of_memory", "reason", "words"),
    [
        (Exit(3, None), ["a", "b"], False, Reason.EXITED, "code 3; its last line: b"),
        (Exit(0, None), [], False, Reason.EXITED, "code 0; it printed nothing"),
        (Exit(None, "SIGSEGV"), ["x"], False, Reason.CRASHED, "SIGSEGV"),
        (Exit(None, "SIGKILL"), ["x"], True, Reason.HOST_OOM, "out of memory"),
        (Exit(None, "SIGKILL"), ["x"], False, Reason.CRASHED, "SIGKILL"),
        (Exit(1, None), ["CUDA error: out of memory"], False, Reason.GPU_OOM, "out of GPU memory"),
        (Exit(1, None), ["cudaMalloc failed: 5 MiB"], False, Reason.GPU_OOM, "out of GPU memory"),
        (Exit(None, None), ["x"], False, Reason.EXITED, "adopted"),
    ],
)
def test_an_end_is_explained(
    end: Exit, lines: list[str], out_of_memory: bool, reason: Reason, words: str
) -> None:
    ending = explain(end, lines, None, out_of_memory)
    assert ending.reason is reason
    assert words in ending.message


def test_the_backend_knows_the_cause_better() -> None:
    assert explain(Exit(1, None), ["x"], "the file is not a GGUF", False).message == (
        "the file is not a GGUF (exited with code 1)"
    )


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1", "2001:db8::1", "a" * 70, "[::1]"])
@pytest.mark.parametrize("wanted", [None, 4711])
def test_an_address_that_is_not_here_fails_at_once(
    monkeypatch: pytest.MonkeyPatch, host: str, wanted: int | None
) -> None:
    asked = []
    ask = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args: asked.append(args) or ask(*args))
    with pytest.raises(NoSuchAddress, match="no server can listen on"):
        Ports(3500).take("a", host, wanted)
    assert len(asked) == 1, "a name server is not asked again for each port"


def test_ports_are_the_lowest_free_ones() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        first = holder.getsockname()[1]
        ports = Ports(first)
        given = ports.take("a", "127.0.0.1", None)
        assert given > first
        assert ports.take("b", "127.0.0.1", None) > given
        ports.give_back("a")
        assert ports.take("c", "127.0.0.1", None) == given
        later = ports.take("e", "127.0.0.1", None)
        ports.give_back("c")
        ports.give_back("e")
        assert ports.take("e", "127.0.0.1", None, later) == later, "its former one"
        assert ports.take("c", "127.0.0.1", None, later) == given, "which another has now"
        with pytest.raises(PortTaken, match=str(first)):
            ports.take("d", "127.0.0.1", first)
        with pytest.raises(PortTaken, match="instance c"):
            ports.take("d", "127.0.0.1", given)


def test_a_server_on_all_addresses_is_reached_on_loopback() -> None:
    assert base_url("0.0.0.0", 1) == "http://127.0.0.1:1"
    assert base_url("::", 1) == "http://[::1]:1"
    assert base_url("10.0.0.1", 1) == "http://10.0.0.1:1"


@pytest.fixture
def mark() -> Mark:
    return Mark(f"test-host-{os.getpid()}", "inst", 2, "digest")


def test_a_child_is_found_by_its_mark_and_its_group(tmp_path: Path, mark: Mark) -> None:
    log = tmp_path / "log"
    code = "import subprocess, sys; subprocess.run(['sleep', '60'])"
    child = spawn([sys.executable, "-c", code], {}, mark, log)
    try:
        process = ProcessId(child.pid, start_mark(child.pid), mark.digest)
        deadline = time.monotonic() + 10
        while len(members(process, marked(mark.host), "inst")) < 2:
            assert time.monotonic() < deadline
        assert marked(mark.host).keys() >= {child.pid}
        assert read_mark(child.pid) == mark
        assert process.alive()
        assert not ProcessId(child.pid, "another boot/1", "").alive()
        assert log.stat().st_mode & 0o777 == 0o600
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    assert not process.alive()
    assert wait_gone(process, 5)
    deadline = time.monotonic() + 10
    while members(process, marked(mark.host), "inst"):  # its child was signalled too, and may take longer
        assert time.monotonic() < deadline


def test_the_environment_of_a_process_is_read_variable_by_variable() -> None:
    child = subprocess.Popen(["sleep", "60"], env={"AB": "wrong", "B": "right", "EMPTY": ""})
    try:
        wait_until(lambda: census.variable(child.pid, "B") == "right", 10, "the kernel to lay it out")
        assert census.variable(child.pid, "EMPTY") == ""
        assert census.variable(child.pid, "C") is None
        assert census.lives(child.pid)
    finally:
        child.kill()
        deadline = time.monotonic() + 10
        while census.lives(child.pid):
            assert time.monotonic() < deadline, "a process that nobody reaped yet does not live"
        child.wait()
    assert census.variable(child.pid, "B") is None


def test_waiting_for_a_foreign_process_ends_with_it(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "60"])
    process = ProcessId(child.pid, start_mark(child.pid), "")
    assert wait_gone(process, 0.05) is False
    Thread(target=lambda: (child.kill(), child.wait()), daemon=True).start()
    assert wait_gone(process, 10) is True


def test_who_listens_is_asked_from_the_kernel() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert listens([os.getpid()], port) is True
        assert listens([os.getppid()], port) is False


def test_marks_and_digests_are_read_back() -> None:
    assert Mark.parse(str(Mark("h", "i", 3, "d"))) == Mark("h", "i", 3, "d")
    for run in ("x", "\N{SUPERSCRIPT TWO}", "9" * 5000):
        assert Mark.parse(f"h:i:{run}:d") is None
    assert Mark.parse("") is None
    assert command_digest(["a", "b"]) != command_digest(["a b"])


def test_the_identity_of_a_host_is_stable_and_its_own(tmp_path: Path) -> None:
    assert host_identity(tmp_path / "a") == host_identity(tmp_path / "x" / ".." / "a")
    assert host_identity(tmp_path / "a") != host_identity(tmp_path / "b")


def test_a_state_reader_gets_the_present_then_each_change() -> None:
    feed = StateFeed("a")
    feed.publish({"busy": False})
    cursor = feed.watch({"busy": False})
    assert cursor.next(0) == [{"type": "instance_state", "data": {"busy": False}}]
    assert cursor.next(0.01) is None
    feed.publish({"busy": True})
    feed.publish({"busy": False})
    entries = cursor.next(0)
    assert entries is not None
    assert [(entry["seq"], entry["data"]["busy"]) for entry in entries] == [(2, True), (3, False)]
    feed.close()
    assert cursor.closed
    assert cursor.next(5) is None
