"""A child that no thread can follow is not kept."""

import threading
from pathlib import Path

import psutil
import pytest

from solarhost.app import create_app
from solarhost.host import Host
from solarhost.settings import Settings
from tests.agent import free_port, wait_until
from tests.conftest import Exhausted

FAKE = Path(__file__).with_name("fake_llama.py")


@pytest.mark.parametrize("follower", ["wait-", "tail-"])
def test_a_start_that_finds_no_thread_for_its_child_ends_it(
    tmp_path: Path, exhausted: Exhausted, follower: str
) -> None:
    settings = Settings(
        api_key="k",
        config_file=tmp_path / "config.json",
        log_dir=tmp_path / "logs",
        models_dir=tmp_path / "models",
        jobs_dir=tmp_path / "jobs",
        llama_server_path=str(FAKE),
        start_port=free_port(),
        stop_timeout_s=1,
    )
    client = create_app(Host(settings)).test_client()
    client.environ_base["HTTP_X_API_KEY"] = "k"
    weights = tmp_path / "m.gguf"
    weights.write_bytes(b"GGUF")
    config = {"backend_type": "llamacpp", "alias": "m", "model": str(weights), "host": "127.0.0.1"}
    path = f"/instances/{client.post('/instances', json={'config': config}).get_json()['instance']['id']}"
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


def threads_of(path: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if path.rpartition("/")[2] in thread.name]
