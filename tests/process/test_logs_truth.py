"""The counts that the agent tells equal the usage blocks of a real server's answers, to the token."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
import requests

from solarhost.backends.llamacpp_log import LlamaCppActivity
from tests.agent import wait_until

SETTLED_S = 10


class Chats:
    """A running llama-server behind an agent, and chats with it."""

    def __init__(self, agent, gguf):
        self.agent = agent
        self.id = agent.create(
            {"model": str(gguf), "alias": "gemma", "host": "127.0.0.1", "ctx_size": 4096, "threads": 1}
        )
        answer = agent.post(f"/instances/{self.id}/start", timeout=120)
        assert answer.status_code == 200, answer.text
        self.url = f"http://127.0.0.1:{agent.instance(self.id)['port']}/v1/chat/completions"

    def ask(self, text, tokens, *, stream=False, read_to_end=True):
        """The counts of the answer's usage block: prompt, generated, cached."""
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        headers = {"Authorization": f"Bearer {self.agent.key}"}
        with requests.post(self.url, json=body, headers=headers, stream=stream, timeout=110) as answer:
            assert answer.status_code == 200, answer.text
            if not stream:
                usage = answer.json()["usage"]
            else:
                lines = (line for line in answer.iter_lines() if line.startswith(b"data: {"))
                if not read_to_end:
                    next(lines)
                    return None
                usage = [json.loads(line[6:]) for line in lines][-1]["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return usage["prompt_tokens"], usage["completion_tokens"], cached

    def last(self):
        """The counts of `last-generation`, None when there is none."""
        answer = self.agent.get(f"/instances/{self.id}/last-generation")
        if answer.status_code == 404:
            return None
        told = answer.json()
        assert told["prompt_eval_tokens"] == told["prompt_tokens"] - told["cached_tokens"]
        assert told["total_tokens"] == told["prompt_tokens"] + told["generated_tokens"]
        return told["prompt_tokens"], told["generated_tokens"], told["cached_tokens"]

    def all(self):
        """The counts of every generation in the log so far."""
        activity = LlamaCppActivity()
        lines = self.agent.get(f"/instances/{self.id}/logs").json()
        activity.feed([line["line"] for line in lines], datetime.now(UTC))
        return [(g.prompt_tokens, g.generated_tokens, g.cached_tokens) for g in activity.generations]

    def busy(self):
        return self.agent.get(f"/instances/{self.id}/state").json()["busy"]


@pytest.fixture(scope="module")
def chats(shared_agent, gguf):
    return Chats(shared_agent, gguf)


def settles(chats, usage):
    return wait_until(lambda: chats.last() == usage, SETTLED_S, f"last-generation to be {usage}")


def test_a_first_a_repeated_and_a_streamed_chat(chats):
    first = chats.ask("Name three colours, please.", 6)
    settles(chats, first)
    again = chats.ask("Name three colours, please.", 5)
    assert again[2] > 0  # the prompt was cached
    settles(chats, again)
    streamed = chats.ask("Name four colours, please.", 7, stream=True)
    settles(chats, streamed)
    one = chats.ask("Name one colour.", 1)
    settles(chats, one)


def test_four_chats_at_once(chats):
    before = len(chats.all())
    texts = [("blue " * (1 + 9 * number), 3 + number, number % 2 == 0) for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        usages = list(pool.map(lambda ask: chats.ask(ask[0], ask[1], stream=ask[2]), texts))
    wait_until(lambda: sorted(chats.all()[before:]) == sorted(usages), SETTLED_S, f"{usages} in the log")
    assert chats.last() in usages
    wait_until(lambda: not chats.busy(), SETTLED_S, "the instance to be idle")


def test_a_cancelled_chat_is_no_generation_and_the_next_one_is_told_right(chats):
    before = chats.last()
    chats.ask("Tell me a very long story.", 2000, stream=True, read_to_end=False)
    wait_until(lambda: not chats.busy(), 30, "the instance to be idle")
    assert chats.last() == before
    settles(chats, chats.ask("And now a short one.", 4))
