"""The server around the whole agent: both ways to start it, its keys on streams, and its stop."""

import base64
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from websocket import ABNF, WebSocketBadStatusException, create_connection

from tests.agent import Agent

GUNICORN = (sys.executable, "-m", "gunicorn", "-c", "python:solarhost.server.gunicorn_conf")


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Agent:
    """Its llama-server never gets ready, and says so."""
    folder = tmp_path_factory.mktemp("agent")
    server = folder / "llama-server"
    server.write_text("#!/bin/sh\nwhile :; do echo loading; sleep 0.1; done\n")
    server.chmod(0o755)
    (folder / "model.gguf").write_bytes(b"GGUF")
    agent = Agent(folder, {"LLAMA_SERVER_PATH": str(server), "STOP_TIMEOUT_S": "3"}, GUNICORN)
    agent.start()
    yield agent
    agent.end()


@pytest.fixture(scope="module")
def instance_id(agent: Agent) -> str:
    return agent.create({"model": str(agent.folder / "model.gguf"), "alias": "a"})


def connect(agent: Agent, path: str, **options):
    return create_connection(f"ws://127.0.0.1:{agent.port}{path}", timeout=10, **options)


def test_the_key_comes_in_any_of_four_ways(agent: Agent, instance_id: str) -> None:
    path = f"/instances/{instance_id}/state"
    protocol = "solar-key." + base64.urlsafe_b64encode(agent.key.encode()).decode().rstrip("=")
    for query, options in (
        ("", {"header": {"X-API-Key": agent.key}}),
        ("", {"header": {"Authorization": f"Bearer {agent.key}"}}),
        (f"?api_key={agent.key}", {}),
        ("", {"subprotocols": [protocol]}),
    ):
        stream = connect(agent, path + query, **options)
        assert json.loads(stream.recv())["data"]["busy"] is False
        stream.close()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"header": {"X-API-Key": "wrong"}},
        {"subprotocols": ["solar-key.d3Jvbmc"]},
        {"subprotocols": ["solar-key.%"]},
    ],
)
def test_without_a_key_the_upgrade_is_refused(agent: Agent, instance_id: str, options: dict) -> None:
    with pytest.raises(WebSocketBadStatusException) as refusal:
        connect(agent, f"/instances/{instance_id}/logs", **options)
    assert refusal.value.status_code == 401
    assert json.loads(refusal.value.resp_body) == {"detail": "Invalid or missing API key"}


def test_a_key_in_the_query_opens_streams_only(agent: Agent) -> None:
    assert agent.get(f"/instances?api_key={agent.key}", headers={"X-API-Key": ""}).status_code == 401


def test_an_unknown_instance_is_named_then_closed(agent: Agent) -> None:
    stream = connect(agent, "/instances/unknown/logs", header={"X-API-Key": agent.key})
    assert json.loads(stream.recv()) == {"error": "Instance not found"}
    assert stream.recv_data()[0] == ABNF.OPCODE_CLOSE


def test_gunicorn_is_not_given_a_second_worker(agent: Agent, tmp_path: Path) -> None:
    second = Agent(tmp_path, {}, (*GUNICORN, "-w", "2"))
    assert second.spawn().wait(30) == 1
    assert second.log() == (
        "solar-host: all state is in one process: leave workers, worker_class and preload_app as configured\n"
    )


# The last one here: it ends the agent.
def test_ten_streams_and_a_start_do_not_delay_the_stop(agent: Agent, instance_id: str) -> None:
    with ThreadPoolExecutor(1) as starts, ExitStack() as stack:
        start = starts.submit(agent.post, f"/instances/{instance_id}/start")
        agent.wait_for_status(instance_id, "starting")
        streams = []
        for kind in ["logs"] * 5 + ["state"] * 5:
            stream = connect(agent, f"/instances/{instance_id}/{kind}", header={"X-API-Key": agent.key})
            stack.callback(stream.shutdown)
            stream.recv()
            streams.append(stream)
        began = time.monotonic()
        assert agent.stop() == 0
        assert time.monotonic() - began < 3 + 5  # what the documentation promises, not a measurement
        assert start.result().status_code == 500
        for stream in streams:
            while (frame := stream.recv_data())[0] != ABNF.OPCODE_CLOSE:
                pass
            assert int.from_bytes(frame[1][:2], "big") == 1001
