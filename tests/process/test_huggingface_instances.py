"""HuggingFace instances under a running agent: their start, their counts, their failures."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.agent import Agent, wait_until
from tests.hf_models import save_causal

SLOW_S = 110  # importing torch on a busy machine


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_causal(tmp_path_factory.mktemp("instance-causal"))


@pytest.fixture(scope="module")
def hf_agent(tmp_path_factory) -> Iterator[Agent]:
    agent = Agent(tmp_path_factory.mktemp("hf-agent"), {"MAX_RETRIES": "1"})
    agent.start()
    yield agent
    agent.end()


@pytest.fixture(scope="module")
def instance(hf_agent, folder) -> dict:
    """A running causal instance."""
    config = {
        "backend_type": "huggingface_causal",
        "model_id": str(folder),
        "alias": "tiny",
        "host": "127.0.0.1",
    }
    instance_id = hf_agent.create(config)
    answer = hf_agent.post(f"/instances/{instance_id}/start", timeout=SLOW_S)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["instance"])


def complete(agent: Agent, instance: dict, **fields) -> dict:
    """One completion, asked with the agent's own key."""
    answer = requests.post(
        f"http://127.0.0.1:{instance['port']}/v1/completions",
        json={"prompt": "the quick brown fox", "max_tokens": 9, "temperature": 0, **fields},
        headers={"Authorization": f"Bearer {agent.key}"},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_running_instance_says_what_it_offers(hf_agent, instance):
    assert instance["status"] == "running"
    assert "/v1/chat/completions" in instance["supported_endpoints"]
    assert instance["capabilities"] is None
    assert instance["served_model_name"] == "tiny"
    wait_until(
        lambda: hf_agent.instance(instance["id"])["context_size"] == 512,
        30,
        "the context of the model itself",
    )


def test_the_last_generation_has_the_counts_of_the_usage(hf_agent, instance):
    answer = complete(hf_agent, instance)
    found = wait_until(
        lambda: (
            last
            if (last := hf_agent.get(f"/instances/{instance['id']}/last-generation").json()).get("task_id")
            == answer["id"]
            else None
        ),
        30,
        "the request's line to be read",
    )
    usage = answer["usage"]
    assert found["prompt_tokens"] == usage["prompt_tokens"]
    assert found["generated_tokens"] == usage["completion_tokens"] == 9
    assert found["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert found["total_tokens"] == usage["total_tokens"]


def test_the_usage_counts_every_token(hf_agent, instance):
    def totals() -> tuple[int, int]:
        usage = hf_agent.get(f"/instances/{instance['id']}/usage").json()
        return usage["prompt_tokens_total"] or 0, usage["generated_tokens_total"] or 0

    def counted() -> bool:
        text = requests.get(
            f"http://127.0.0.1:{instance['port']}/metrics", headers={"X-API-Key": hf_agent.key}, timeout=30
        ).text
        names = ("hf_server_prompt_tokens_total ", "hf_server_generated_tokens_total ")
        lines = [line for name in names for line in text.splitlines() if line.startswith(name)]
        return totals() == tuple(int(float(line.split()[1])) for line in lines)

    complete(hf_agent, instance, prompt="count these tokens too")
    wait_until(counted, 30, "the usage to be that of the server")
    assert min(totals()) > 0


def test_a_broken_checkpoint_fails_with_its_cause(hf_agent, folder, tmp_path):
    (tmp_path / "config.json").write_text("{broken")
    config = {"backend_type": "huggingface_causal", "model_id": str(tmp_path), "alias": "broken"}
    instance_id = hf_agent.create({**config, "host": "127.0.0.1"})
    answer = hf_agent.post(f"/instances/{instance_id}/start", timeout=SLOW_S)
    assert answer.status_code == 500
    assert any("start_failed" in line for line in answer.json()["log_tail"])
    failed = hf_agent.instance(instance_id)
    assert "configuration is broken" in failed["error_message"]
    assert failed["retry_count"] == 0  # it would be broken again


def test_no_key_is_in_a_log_or_on_a_command_line(hf_agent, instance):
    command = Path(f"/proc/{instance['pid']}/cmdline").read_bytes()
    assert hf_agent.key.encode() not in command
    lines = hf_agent.get(f"/instances/{instance['id']}/logs").json()
    assert lines
    assert not any(hf_agent.key in line["line"] for line in lines)


def test_a_stop_leaves_nothing(hf_agent, instance):
    """The last test of this instance: it ends it."""
    answer = hf_agent.post(f"/instances/{instance['id']}/stop")
    assert answer.status_code == 200, answer.text
    assert not Path(f"/proc/{instance['pid']}").exists()
