"""Instances while the system is short of threads or descriptors: nothing is kept that nobody follows, and
nothing that lives is taken for dead."""

import os
import signal
import threading
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit

import psutil
import pytest
from flask.testing import FlaskClient

from solarhost.host import Host
from solarhost.instances import census
from tests.agent import free_port, wait_until
from tests.conftest import Exhausted
from tests.descriptors import left
from tests.in_process import client_of, settings_in

FAKE = Path(__file__).with_name("fake_llama.py")


@pytest.fixture
def client(tmp_path: Path) -> FlaskClient:
    settings = settings_in(tmp_path, llama_server_path=str(FAKE), start_port=free_port(), stop_timeout_s=1)
    return client_of(Host(settings))


def create(client: FlaskClient, folder: Path, *flags: str, host: str = "127.0.0.1") -> str:
    """The path of a new instance."""
    weights = folder / "m.gguf"
    weights.write_bytes(b"GGUF")
    config = {"alias": "m", "model": str(weights), "host": host, "extra_args": list(flags)}
    return f"/instances/{client.post('/instances', json={'config': config}).get_json()['instance']['id']}"


def threads_of(path: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if path.rpartition("/")[2] in thread.name]


@pytest.mark.parametrize("follower", ["wait-", "tail-"])
def test_a_start_that_finds_no_thread_for_its_child_ends_it(
    client: FlaskClient, tmp_path: Path, exhausted: Exhausted, follower: str
) -> None:
    path = create(client, tmp_path)
    before = set(psutil.Process().children())
    with exhausted(follower):
        failed = client.post(f"{path}/start")
    assert failed.status_code == 500
    assert "no thread can be started" in failed.get_json()["detail"]
    assert set(psutil.Process().children()) == before
    assert client.get(path).get_json()["pid"] is None
    wait_until(lambda: not threads_of(path), 10, "the threads of that start to end")
    assert client.post(f"{path}/start").status_code == 200
    assert client.post(f"{path}/stop").status_code == 200
    wait_until(lambda: not threads_of(path), 10, "all its threads to end")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("free", range(5))
def test_a_start_without_a_free_descriptor_says_so(
    client: FlaskClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, host: str
) -> None:
    monkeypatch.setattr(census, "PATIENCE_S", 0.2)
    path = create(client, tmp_path, host=host)
    with left(free):
        limit, _ = getrlimit(RLIMIT_NOFILE)
        failed = client.post(f"{path}/start")
    assert failed.status_code == 500
    assert f"Too many open files (this process may have {limit} at once" in failed.get_json()["detail"]
    assert client.post(f"{path}/stop").status_code == 200
    assert client.get(path).get_json()["status"] == "stopped"
    wait_until(lambda: not threads_of(path), 10, "all its threads to end")


def test_a_stop_that_can_see_no_process_does_not_say_stopped(
    client: FlaskClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(census, "PATIENCE_S", 0.2)
    path = create(client, tmp_path, "--ignore-term", "--leave-group")
    started = client.post(f"{path}/start")
    assert started.status_code == 200, started.text
    child = psutil.Process(started.get_json()["instance"]["pid"])
    with left(0):
        refused = client.post(f"{path}/stop")
    assert refused.status_code == 503
    detail = refused.get_json()["detail"]
    assert detail.startswith("what runs on this machine can't be seen: Too many open files")
    shown = client.get(path).get_json()
    assert (shown["status"], shown["reason"]) == ("failed", "stop_failed")
    assert child.is_running()
    assert client.post(f"{path}/stop").status_code == 200
    assert client.get(path).get_json()["status"] == "stopped"
    assert not child.is_running()
    wait_until(lambda: not threads_of(path), 10, "all its threads to end")


def test_an_end_that_can_not_be_seen_at_once_is_seen_later(
    client: FlaskClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(census, "PATIENCE_S", 0.2)
    path = create(client, tmp_path)
    pid = client.post(f"{path}/start").get_json()["instance"]["pid"]
    with left(0):
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: "looking again" in caplog.text, 10, "a look in vain")
    wait_until(lambda: client.get(path).get_json()["status"] == "failed", 10, "the agent to know")
    assert client.get(path).get_json()["reason"] == "crashed"
    wait_until(lambda: not threads_of(path), 10, "all its threads to end")
