"""hf_server as a process: its start, its end, and clients that go away."""

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests

from tests.agent import ROOT, free_port, wait_until
from tests.hf_models import save_causal
from tests.hf_process import KEY, STARTED_WITHIN_S, Server


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_causal(tmp_path_factory.mktemp("process-causal"))


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory) -> Iterator[Server]:
    """A running server."""
    server = Server(folder, tmp_path_factory.mktemp("log") / "log", "--model-type=causal")
    server.wait_until_ready()
    yield server
    if server.process.poll() is None:
        os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()


def test_the_port_answers_while_the_model_loads(server):
    before = [body for status, body in server.stages if status == 503]
    assert before[0] == {"status": "loading", "stage": "importing"}
    assert server.stages[-1][1]["status"] == "ok"
    assert re.search(r"event=ready model=tiny device=cpu duration_s=[\d.]+", server.log())


def test_a_local_model_is_served_without_any_connection(server):
    assert not server.connections.exists()


def stream(server: Server, max_tokens: int) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = {"prompt": "hello", "max_tokens": max_tokens, "stream": True, "logit_bias": {"2": -100}}
    connection.request("POST", "/v1/completions", json.dumps(body), {"X-API-Key": KEY})
    response = connection.getresponse()
    assert response.status == 200
    response.connection = connection
    return response


def test_a_client_that_goes_away_stops_its_generation(server):
    response = stream(server, 500)
    response.readline()
    response.connection.sock.shutdown(2)
    response.connection.close()
    wait_until(lambda: server.metric("hf_server_requests_processing") == 0, 30, "the generation to stop")
    wait_until(lambda: "status=499" in server.log(), 30, "the log line of its end")
    end = next(line for line in server.log().splitlines() if "status=499" in line)
    assert int(re.search(r"generated_tokens=(\d+)", end)[1]) < 500


def test_the_log_has_the_counts_of_the_usage(server):
    answer = requests.post(
        f"{server.url}/v1/completions",
        json={"prompt": "the quick brown fox", "max_tokens": 7, "temperature": 0},
        headers={"X-API-Key": KEY},
        timeout=60,
    ).json()
    line = next(line for line in server.log().splitlines() if f"request_end id={answer['id']}" in line)
    usage = answer["usage"]
    assert f"prompt_tokens={usage['prompt_tokens']} generated_tokens=7 cached_tokens=0" in line
    assert "status=200" in line
    assert "finish_reason=length" in line
    assert re.search(r"duration_s=[\d.]+ ttft_s=[\d.]+", line)
    assert KEY not in server.log()


def test_a_request_under_way_does_not_hold_up_the_end(server):
    """The last test of this server: it ends it."""
    response = stream(server, 500)
    response.readline()
    begun = time.monotonic()
    assert server.end() == 0
    assert time.monotonic() - begun < 15
    rest = response.read().decode()
    assert "stopping" in rest or "[DONE]" in rest or rest == ""


def test_a_start_that_fails_says_why_and_ends(folder, tmp_path):
    server = Server(folder, tmp_path / "log", "--model-type=causal", "--device=cuda")
    assert server.process.wait(STARTED_WITHIN_S) == 3
    assert re.search(r'event=start_failed message="device .cuda. was asked for', server.log())


@pytest.fixture
def no_hub(folder, tmp_path) -> dict[str, str]:
    """The environment of a machine that downloaded `some/model` once, and can't reach the hub now."""
    downloaded = tmp_path / "hub/models--some--model"
    (downloaded / "refs").mkdir(parents=True)
    (downloaded / "refs/main").write_text("0" * 40)
    shutil.copytree(folder, downloaded / "snapshots" / ("0" * 40))
    return {"HF_HOME": str(tmp_path), "HF_ENDPOINT": f"http://127.0.0.1:{free_port()}"}


def test_a_model_that_was_downloaded_starts_without_its_hub(tmp_path, no_hub):
    server = Server("some/model", tmp_path / "log", "--model-type=causal", environment=no_hub)
    server.wait_until_ready()
    assert server.end() == 0
    assert "event=hub" in server.log()
    assert len(server.connections.read_text().splitlines()) <= 2  # it asked once


def test_a_model_that_was_not_downloaded_fails_with_the_name_of_its_hub(tmp_path, no_hub):
    server = Server("another/model", tmp_path / "log", "--model-type=causal", environment=no_hub)
    assert server.process.wait(STARTED_WITHIN_S) == 3
    words = f"the hub {no_hub['HF_ENDPOINT']} can't be reached"
    assert words in server.log().partition("event=start_failed")[2]


def test_the_server_ends_when_its_worker_dies(folder, tmp_path):
    server = Server(folder, tmp_path / "log", "--model-type=causal")
    wait_until(lambda: server.health() is not None, STARTED_WITHIN_S, "the port to open")
    (worker,) = psutil.Process(server.process.pid).children()
    worker.kill()
    assert server.process.wait(20) != 0
    assert "event=worker_died" in server.log()


def test_help_documents_the_options():
    done = subprocess.run(
        [sys.executable, "-m", "hf_server", "--help"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for option in ("--model-id", "--model-type", "--labels", "--allow-image-urls", "SOLAR_API_KEY"):
        assert option in done.stdout
