"""A real llama-server with a real model, through a running agent, which the tests share."""

import json
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
import websocket

from tests.agent import Agent, wait_until
from tests.conftest import AgentFactory

LONG = "Repeat after me, word by word: " + " ".join(f"number {n}" for n in range(40))


@pytest.fixture(scope="module")
def agent(shared_agent: Agent) -> Agent:
    return shared_agent


@pytest.fixture(scope="module")
def config(gguf: Path) -> dict[str, Any]:
    return {
        "backend_type": "llamacpp",
        "model": str(gguf),
        "alias": "gemma-3:270m",
        "host": "127.0.0.1",
        "threads": 1,  # more would wait for each other on a busy machine
        "ctx_size": 8192,
        "temp": 0.0,
    }


@pytest.fixture(scope="module")
def serving(agent: Agent, config: dict[str, Any]) -> dict[str, Any]:
    """A running instance, for tests that only talk to it."""
    return start(agent, agent.create(config))


def start(agent: Agent, instance_id: str) -> dict[str, Any]:
    answer = agent.post(f"/instances/{instance_id}/start")
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["instance"])


def stop(agent: Agent, instance_id: str) -> dict[str, Any]:
    answer = agent.post(f"/instances/{instance_id}/stop")
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["instance"])


def chat(agent: Agent, instance: dict[str, Any], text: str, max_tokens: int, *, stream: bool = False) -> Any:
    """The answer's text and its usage block."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    with requests.post(
        f"http://127.0.0.1:{instance['port']}/v1/chat/completions",
        headers={"Authorization": f"Bearer {agent.key}"},
        json=body,
        timeout=100,
        stream=stream,
    ) as answer:
        assert answer.status_code == 200, answer.text
        if not stream:
            whole = answer.json()
            return whole["choices"][0]["message"]["content"], whole["usage"]
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith(b"data: {")]
    text = "".join(
        choice["delta"].get("content") or "" for event in events for choice in event.get("choices", ())
    )
    return text, events[-1]["usage"]


def counts(usage: dict[str, Any]) -> tuple[int, int, int]:
    """Prompt, completion and cached tokens of a usage block."""
    cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return usage["prompt_tokens"], usage["completion_tokens"], cached


def counts_of_metrics(metrics: dict[str, Any]) -> tuple[int, int, int]:
    assert metrics["prompt_tokens"] == metrics["prompt_eval_tokens"] + metrics["cached_tokens"]
    assert metrics["total_tokens"] == metrics["prompt_tokens"] + metrics["generated_tokens"]
    return metrics["prompt_tokens"], metrics["generated_tokens"], metrics["cached_tokens"]


def last_generation(agent: Agent, instance: dict[str, Any]) -> dict[str, Any] | None:
    answer = agent.get(f"/instances/{instance['id']}/last-generation")
    return dict(answer.json()) if answer.status_code == 200 else None


def test_a_model_is_served_watched_and_stopped(agent, config):
    instance_id = agent.create(config)
    assert agent.instance(instance_id)["status"] == "stopped"
    assert agent.get(f"/instances/{instance_id}/last-generation").status_code == 404

    started = start(agent, instance_id)
    assert (started["status"], started["reason"], started["run"]) == ("running", "ready", 1)
    assert started["context_size"] == 8192
    assert started["served_model_name"] == config["alias"]
    assert Path(f"/proc/{started['pid']}/exe").readlink().name == "llama-server"
    command = Path(f"/proc/{started['pid']}/cmdline").read_text()
    assert agent.key not in command

    text, usage = chat(agent, started, "Say hello.", 20)
    assert text
    metrics = wait_until(lambda: last_generation(agent, started), 10, "the metrics of the request")
    assert counts_of_metrics(metrics) == counts(usage)
    assert metrics["started_at"] < metrics["finished_at"]

    state = wait_until(
        lambda: None if (s := agent.get(f"/instances/{instance_id}/state").json())["busy"] else s, 10, "idle"
    )
    assert (state["phase"], state["active_slots"]) == ("idle", 0)
    usage_totals = wait_until(
        lambda: (u := agent.get(f"/instances/{instance_id}/usage").json())["generated_tokens_total"] and u,
        15,
        "the totals from /metrics",
    )
    assert usage_totals["generated_tokens_total"] == usage["completion_tokens"]

    stopped = stop(agent, instance_id)
    assert (stopped["status"], stopped["reason"], stopped["pid"]) == ("stopped", "user_stop", None)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", started["port"])) != 0
    lines = agent.get(f"/instances/{instance_id}/logs").json()
    assert [line["seq"] for line in lines] == list(range(lines[0]["seq"], lines[0]["seq"] + len(lines)))
    assert any("model loaded" in line["line"] for line in lines)


def test_a_log_stream_carries_what_the_log_holds(agent, serving):
    url = f"ws://127.0.0.1:{agent.port}/instances/{serving['id']}/logs?api_key={agent.key}"
    stream = websocket.create_connection(url, timeout=30)
    try:
        before = agent.get(f"/instances/{serving['id']}/logs").json()[-1]["seq"]
        chat(agent, serving, "Say hello.", 8)
        streamed = [json.loads(stream.recv())]
        while streamed[-1]["seq"] <= before or "stop processing" not in streamed[-1]["line"]:
            streamed.append(json.loads(stream.recv()))
    finally:
        stream.close()
    lines = agent.get(f"/instances/{serving['id']}/logs").json()
    assert streamed == lines[: len(streamed)]
    assert agent.key not in json.dumps(lines)


def test_a_state_stream_shows_a_request_from_prompt_to_idle(agent, serving):
    url = f"ws://127.0.0.1:{agent.port}/instances/{serving['id']}/state?api_key={agent.key}"
    stream = websocket.create_connection(url, timeout=30)
    phases = []
    try:
        assert json.loads(stream.recv())["data"]["phase"] == "idle"
        sender = threading.Thread(target=chat, args=(agent, serving, LONG, 40))
        sender.start()
        while phases[-1:] != ["idle"]:
            message = json.loads(stream.recv())
            assert message["type"] == "instance_state"
            phases.append(message["data"]["phase"])
        sender.join()
    finally:
        stream.close()
    # A short answer is over before the server prints that it generates.
    assert phases[0] in ("prefill", "generating")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_metrics_of_a_request_equal_its_usage_block(agent, serving, stream):
    for text, max_tokens in (("Say hello.", 6), ("Say hello.", 15), (LONG, 10), (LONG, 1)):
        before = last_generation(agent, serving)
        _, usage = chat(agent, serving, text, max_tokens, stream=stream)
        after = wait_until(
            lambda seen=before: (new := last_generation(agent, serving)) != seen and new, 10, "its metrics"
        )
        assert counts_of_metrics(after) == counts(usage)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_four_requests_at_once_are_told_apart(agent, serving, stream):
    """Each ends at another time, so each is the last one for a while; the second round is cached."""
    seen: dict[Any, tuple[int, int, int]] = {}
    earlier = (last_generation(agent, serving) or {}).get("task_id")
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            metrics = last_generation(agent, serving)
            if metrics and metrics["task_id"] != earlier:
                seen[metrics["task_id"]] = counts_of_metrics(metrics)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        usages = []
        with ThreadPoolExecutor(4) as pool:
            for _ in range(2):
                answers = [
                    pool.submit(
                        chat, agent, serving, f"{n}: {LONG[: 80 * n + 20]}", 12 * n + 4, stream=stream
                    )
                    for n in range(4)
                ]
                usages += [counts(answer.result()[1]) for answer in answers]
        assert any(cached for _, _, cached in usages)
        wait_until(lambda: len(seen) == len(usages), 10, f"the metrics of all requests: {seen} {usages}")
    finally:
        done.set()
        watcher.join()
    assert sorted(seen.values()) == sorted(usages)


def test_a_server_that_is_killed_is_failed_and_starts_again(agent, config):
    started = start(agent, agent.create(config))
    os.kill(started["pid"], signal.SIGKILL)
    failed = agent.wait_for_status(started["id"], "failed")
    assert failed["signal"] in (signal.SIGKILL, "SIGKILL")
    assert failed["pid"] is None
    assert "SIGKILL" in failed["error_message"]
    again = start(agent, started["id"])
    assert (again["status"], again["run"]) == ("running", 2)
    assert chat(agent, again, "Say hello.", 5)[0]
    stop(agent, started["id"])


def failed_start(agent: Agent, config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answer of a start that fails, and the instance afterwards."""
    instance_id = agent.create(config)
    answer = agent.post(f"/instances/{instance_id}/start")
    assert answer.status_code == 500, answer.text
    body = answer.json()
    assert body["instance_id"] == instance_id
    instance = agent.instance(instance_id)
    assert instance["status"] == "failed"
    assert instance["error_message"]
    assert instance["error_message"] in body["detail"]
    return body, instance


def test_a_missing_executable_says_how_to_get_one(make_agent: AgentFactory, config):
    agent = make_agent(LLAMA_SERVER_PATH="/none/llama-server")
    agent.start()
    body, instance = failed_start(agent, config)
    assert "LLAMA_SERVER_PATH=/none/llama-server is not an executable file" in body["detail"]
    assert (instance["reason"], instance["retry_count"], body["exit_code"]) == ("spawn_error", 0, None)


def test_a_missing_model_is_named(agent, config):
    body, instance = failed_start(agent, {**config, "model": "/none/model.gguf"})
    assert "there is no file /none/model.gguf" in body["detail"]
    assert (instance["reason"], instance["retry_count"]) == ("spawn_error", 0)


def test_a_file_that_is_no_gguf_is_named_with_the_servers_own_lines(agent, config, tmp_path):
    model = tmp_path / "notes.gguf"
    model.write_text("not a model")
    body, instance = failed_start(agent, {**config, "model": str(model)})
    assert f"{model} is not a GGUF file" in body["detail"]
    assert (instance["reason"], instance["exit_code"], instance["retry_count"]) == ("exited", 1, 2)
    assert body["exit_code"] == 1
    assert any("failed to load model" in line for line in body["log_tail"])


def test_a_taken_port_is_named(agent, config):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        body, instance = failed_start(agent, {**config, "port": port})
    assert str(port) in body["detail"]
    assert instance["retry_count"] == 0
    again = start(agent, instance["id"])  # the port is free again
    assert again["port"] == port
    stop(agent, instance["id"])


def test_a_flag_that_this_build_does_not_know_is_named(agent, config):
    body, _ = failed_start(agent, {**config, "extra_args": ["--flag-of-another-build"]})
    assert "does not know the flag --flag-of-another-build" in body["detail"]


def test_a_context_that_does_not_fit_is_named(make_agent: AgentFactory, config, llama_server, tmp_path):
    """The memory limit stands in for a machine that is too small."""
    wrapper = tmp_path / "llama-server"
    wrapper.write_text(f'#!/bin/sh\nulimit -v 900000\nexec {llama_server} "$@"\n')
    wrapper.chmod(0o755)
    agent = make_agent(LLAMA_SERVER_PATH=str(wrapper), MAX_RETRIES="0")
    agent.start()
    body, _ = failed_start(agent, {**config, "ctx_size": 131072})
    assert "out of host memory" in body["detail"]


def test_instances_share_nothing_but_the_hosts_key(agent, config, serving):
    other = start(agent, agent.create({**config, "alias": "other", "api_key": "key-of-the-other"}))
    assert other["port"] != serving["port"]
    answers = {
        (instance["alias"], key): requests.get(
            f"http://127.0.0.1:{instance['port']}/v1/models", headers={"X-API-Key": key}, timeout=10
        ).status_code
        for instance in ({**serving, "alias": "first"}, {**other, "alias": "other"})
        for key in (agent.key, "key-of-the-other")
    }
    assert answers == {
        ("first", agent.key): 200,
        ("first", "key-of-the-other"): 401,
        ("other", agent.key): 200,
        ("other", "key-of-the-other"): 200,
    }
    stop(agent, other["id"])


def test_an_embedding_instance_answers_with_vectors(agent, config):
    started = start(agent, agent.create({**config, "model_type": "embedding", "pooling": "mean"}))
    answer = requests.post(
        f"http://127.0.0.1:{started['port']}/v1/embeddings",
        headers={"Authorization": f"Bearer {agent.key}"},
        json={"input": ["one", "two"]},
        timeout=60,
    )
    assert [len(item["embedding"]) for item in answer.json()["data"]] == [640, 640]
    stop(agent, started["id"])
