"""Answers of hf_server's scheduler against `generate` of transformers on the same weights."""

from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_server.errors import ApiError, ClientGone, Overloaded
from hf_server.generation import Delta, Failed, Generation, Outbox, Prompt, Sampling
from tests.hf_models import save_architecture

pytest_plugins = ["tests.hf_fixtures"]

TEXTS = [
    "hello world",
    "the quick",
    "a",
    "lazy dog jumps over the quick brown fox and the world hello " * 3,
    "fox",
    "over the",
    "hello hello hello",
    "Größe 北京 🦊",
]
LENGTHS = [40, 17, 60, 33, 5, 21, 48, 9]


class Asked:
    """One generation under way, seen from the request's side."""

    def __init__(self, engine, ids: list[int], *, streamed: bool = False, choices: int = 1, **sampling):
        self.outbox: Outbox = SimpleQueue()
        self.gone = False
        self.generation = Generation(
            id="test",
            prompt=Prompt(ids),
            sampling=Sampling(**{"temperature": 0, **sampling}),
            choices=choices,
            first_index=0,
            streamed=streamed,
            outbox=self.outbox,
            is_abandoned=lambda: self.gone,
        )
        engine.queue.submit([self.generation])

    def next(self) -> Delta:
        news = self.outbox.get(timeout=60)
        if isinstance(news, Failed):
            raise news.error
        return news

    def all(self) -> list[Delta]:
        """Every piece, up to the end of the last answer."""
        pieces, left = [], self.generation.choices
        while left:
            pieces.append(self.next())
            left -= pieces[-1].finish_reason is not None
        return pieces

    def text(self) -> str:
        return "".join(piece.text for piece in self.all())


@pytest.fixture(scope="module")
def reference(causal_folder) -> Callable[[str, int], str]:
    return greedy(causal_folder)


def greedy(folder: Path) -> Callable[[str, int], str]:
    """Greedy text by transformers itself, one prompt at a time."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def generate(text: str, max_tokens: int) -> str:
        inputs = tokenizer(text, return_tensors="pt")
        output = model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)
        return tokenizer.decode(output[0, inputs.input_ids.shape[1] :], skip_special_tokens=True)

    return generate


@pytest.fixture
def ask(causal):
    def ask(text: str, **options) -> Asked:
        return Asked(causal.engine, causal.engine.prompts.text(text).ids, **options)

    return ask


@pytest.mark.parametrize("text", TEXTS)
def test_greedy_text_alone_is_that_of_transformers(ask, reference, text):
    assert ask(text, max_tokens=40).text() == reference(text, 40)


@pytest.mark.parametrize("streamed", [False, True])
def test_greedy_text_in_a_batch_of_eight_is_that_of_transformers(ask, reference, streamed):
    asked = [ask(text, max_tokens=n, streamed=streamed) for text, n in zip(TEXTS, LENGTHS, strict=True)]
    texts = [one.text() for one in asked]
    assert texts == [reference(text, n) for text, n in zip(TEXTS, LENGTHS, strict=True)]


@pytest.mark.parametrize("architecture", ["sliding", "positions", "recurrent"])
def test_other_architectures_give_the_text_of_transformers(serve_model, tmp_path, architecture):
    """Windows of eight tokens; learned positions; layers that remember more than keys and values."""
    folder = save_architecture(tmp_path / architecture, architecture)
    engine = serve_model(folder, model_type="causal").engine
    texts = [TEXTS[3], *TEXTS[:3]]
    expected = [greedy(folder)(text, 24) for text in texts]
    asked = [Asked(engine, engine.prompts.text(text).ids, max_tokens=24) for text in texts]
    assert [one.text() for one in asked] == expected
    assert Asked(engine, engine.prompts.text(texts[0]).ids, max_tokens=24).text() == expected[0]


def test_a_request_joins_at_the_next_token(ask, reference):
    long = ask(TEXTS[0], max_tokens=400, streamed=True)
    long.next()
    short = ask(TEXTS[1], max_tokens=5)
    assert short.text() == reference(TEXTS[1], 5)
    assert long.generation.generated_tokens < 400  # the short one came and went meanwhile
    assert len("".join(piece.text for piece in long.all())) > 0


def test_a_longer_prompt_joins_a_shorter_one(ask, reference):
    short = ask("a", max_tokens=100, streamed=True)
    first = short.next()
    assert ask(TEXTS[3], max_tokens=30).text() == reference(TEXTS[3], 30)
    assert first.text + short.text() == reference("a", 100)


def test_the_prompt_of_a_next_turn_is_taken_from_the_cache(ask, reference):
    begin = "the quick brown fox jumps over " * 6
    answer = ask(begin, max_tokens=20).text()
    turn = ask(begin + answer + " and hello", max_tokens=20)
    assert turn.text() == reference(begin + answer + " and hello", 20)
    assert turn.generation.cached_tokens >= 32


def test_a_prompt_known_in_full_still_computes_its_last_token(ask, reference):
    text = "jumps over the lazy dog " * 8
    first, again = ask(text, max_tokens=8), None
    assert first.text() == reference(text, 8)
    again = ask(text, max_tokens=8)
    assert again.text() == reference(text, 8)
    assert again.generation.cached_tokens == len(again.generation.prompt.ids) - 1


def test_a_long_prompt_goes_through_in_pieces(serve_model, causal_folder, reference, monkeypatch):
    monkeypatch.setattr("hf_server.engine.scheduler._PREFILL_TOKENS", 7)
    engine = serve_model(causal_folder, model_type="causal").engine
    asked = [Asked(engine, engine.prompts.text(text).ids, max_tokens=12) for text in TEXTS]
    assert [one.text() for one in asked] == [reference(text, 12) for text in TEXTS]


def test_an_abandoned_answer_ends_within_one_token(ask):
    asked = ask(TEXTS[0], max_tokens=450, streamed=True)
    asked.next()
    asked.gone = True
    seen = asked.generation.generated_tokens
    with pytest.raises(ClientGone):
        asked.all()
    assert asked.generation.generated_tokens <= seen + 1


def test_choices_share_their_prompt_and_differ_by_seed(ask):
    def three(seed: int) -> list[str]:
        pieces = ask("hello", max_tokens=12, choices=3, temperature=1.0, seed=seed).all()
        return [piece.text for piece in sorted(pieces, key=lambda piece: piece.index)]

    texts = three(7)
    assert len(set(texts)) == 3
    assert three(7) == texts
    assert three(8) != texts


def test_a_seed_gives_the_same_text_alone_and_among_others(ask):
    alone = ask("hello", max_tokens=20, temperature=0.8, top_p=0.9, seed=3).text()
    others = [ask(text, max_tokens=30) for text in TEXTS[:4]]
    assert ask("hello", max_tokens=20, temperature=0.8, top_p=0.9, seed=3).text() == alone
    assert all(other.text() for other in others)


def test_more_than_the_queue_holds_is_refused(serve_model, causal_folder):
    engine = serve_model(causal_folder, model_type="causal", max_batch=1, max_queue=2).engine
    ids = engine.prompts.text("hello").ids
    running = Asked(engine, ids, max_tokens=500, streamed=True)
    running.next()
    waiting = [Asked(engine, ids, max_tokens=2) for _ in range(2)]
    with pytest.raises(Overloaded):
        Asked(engine, ids, max_tokens=2)
    running.gone = True
    assert all(one.text() for one in waiting)


def test_closing_ends_what_runs_and_waits(serve_model, causal_folder):
    engine = serve_model(causal_folder, model_type="causal", max_batch=1).engine
    ids = engine.prompts.text("hello").ids
    asked = [Asked(engine, ids, max_tokens=500) for _ in range(3)]
    engine.close()
    for one in asked:
        with pytest.raises(ApiError, match="stopping"):
            one.all()


def test_answers_wait_for_room_in_the_cache_and_all_come(serve_model, causal_folder, reference):
    engine = serve_model(causal_folder, model_type="causal", kv_tokens=120).engine
    asked = [Asked(engine, engine.prompts.text(text).ids, max_tokens=40) for text in TEXTS]
    assert [one.text() for one in asked] == [reference(text, 40) for text in TEXTS]


def test_logprobs_are_those_of_the_model(ask, causal_folder):
    asked = ask("hello world", max_tokens=5, logprobs=3)
    (answer,) = asked.all()
    model = AutoModelForCausalLM.from_pretrained(causal_folder)
    ids = [*asked.generation.prompt.ids, *(one.token for one in answer.logprobs)]
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    begin = len(asked.generation.prompt.ids) - 1
    for place, one in enumerate(answer.logprobs):
        row = logits[begin + place]
        assert one.logprob == pytest.approx(float(row[one.token]), abs=1e-4)
        assert [token for token, _ in one.alternatives] == row.topk(3).indices.tolist()


def test_penalties_and_bias_change_the_choice(ask, causal):
    plain = ask("hello", max_tokens=1, logprobs=2).all()[0].logprobs[0]
    second = plain.alternatives[1][0]
    biased = ask("hello", max_tokens=30, logit_bias={second: 100.0}, logprobs=0).all()[0].logprobs
    assert {one.token for one in biased} == {second}
    varied = ask(
        "hello",
        max_tokens=30,
        logit_bias={second: 30.0},
        frequency_penalty=2.0,
        presence_penalty=2.0,
        logprobs=0,
    ).all()[0]
    assert len({one.token for one in varied.logprobs}) > 1
