"""How hf_server uses the processor: packed weights, and as many threads as there are cores left."""

from collections.abc import Iterator, Sequence
from threading import Barrier

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    ModernBertConfig,
    ModernBertModel,
)

from hf_server.engine.batcher import Batcher
from hf_server.engine.cores import Cores, Reading
from hf_server.engine.encoder import Embedder, Encoder
from hf_server.engine.packing import PackedLinear, SiblingLinear, packed_if_possible
from hf_server.engine.tracing import trace_if_same
from hf_server.metrics import Metrics
from hf_server.texts import TextJob, Vectors

IDS = torch.tensor([[5, 6, 7, 8]])
SMALL = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2}


def run(model: torch.nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=IDS)[0]


def kinds(model: torch.nn.Module) -> set[type]:
    return {type(module) for module in model.modules()} & {PackedLinear, SiblingLinear, torch.nn.Linear}


@pytest.mark.parametrize(
    "model",
    [
        LlamaForCausalLM(LlamaConfig(**SMALL, num_attention_heads=4)),
        BertModel(BertConfig(**SMALL, num_attention_heads=4)),
    ],
    ids=["without bias", "with bias"],
)
def test_packed_layers_give_the_same_numbers(model):
    before = run(model.eval())
    after = packed_if_possible(model, lambda: run(model))
    assert kinds(model) == {PackedLinear, SiblingLinear}
    torch.testing.assert_close(after, before)


class Reader(torch.nn.Module):
    """Reads the weights of one of its layers by itself, as some models do, once the others have run."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.own = (torch.nn.Linear(4, width) for width in (3, 5, 4))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        both = torch.cat([self.left(hidden), self.right(hidden)], dim=-1)
        return torch.cat([both, hidden @ self.own.weight], dim=-1) if self.reads else both

    reads = False
    device, dtype = torch.device("cpu"), torch.float32


def test_layers_that_read_the_same_input_are_multiplied_as_one():
    model, hidden = Reader(), torch.randn(2, 4)
    before = model(hidden)
    packed_if_possible(model, lambda: model(hidden))
    assert (type(model.left), type(model.right)) == (SiblingLinear, SiblingLinear)
    with torch.inference_mode():
        torch.testing.assert_close(model(hidden), before)
        # In another order, one of them twice, one of them alone.
        right, left = model.right(hidden), model.left(hidden)
        torch.testing.assert_close(torch.cat([left, right], dim=-1), before)
        other = torch.randn(2, 4)
        torch.testing.assert_close(model.left(other), model.left(other.clone()))
        torch.testing.assert_close(model.left(hidden), left)


def test_layers_that_were_multiplied_as_one_can_be_what_they_were():
    model, hidden = Reader(), torch.randn(2, 4)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.reads = True
    before = packed_if_possible(model, lambda: model(hidden))
    assert kinds(model) == {torch.nn.Linear}
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    torch.testing.assert_close(model(hidden), before)


def test_an_output_layer_that_shares_its_weights_with_the_embeddings_is_not_copied():
    model = LlamaForCausalLM(LlamaConfig(**SMALL, num_attention_heads=4, tie_word_embeddings=True)).eval()
    packed_if_possible(model, lambda: run(model))
    assert kinds(model) == {PackedLinear, SiblingLinear, torch.nn.Linear}
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_model_that_reads_the_weights_of_its_layers_is_left_as_it_was():
    model = MambaForCausalLM(MambaConfig(**SMALL, use_cache=False)).eval()
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    before = run(model)
    torch.testing.assert_close(packed_if_possible(model, lambda: run(model)), before)
    assert kinds(model) == {torch.nn.Linear}
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())


@pytest.fixture
def two_threads() -> Iterator[None]:
    most = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(most)


@pytest.mark.usefixtures("two_threads")
def test_threads_follow_the_cores_that_others_leave():
    readings = [
        Reading(at=0, idle=100, own=10),
        Reading(at=1, idle=100.1, own=10.5),  # others took 1.4 of two cores
        Reading(at=1, idle=100.1, own=10.5),
        Reading(at=2, idle=101, own=11.3),  # they are gone
        Reading(at=2, idle=101, own=11.3),
        Reading(at=3, idle=101, own=11.6),  # and back, and more of them
        Reading(at=3, idle=101, own=11.6),
    ]
    cores = Cores(iter(readings).__next__)
    assert [cores.left() for _ in range(3)] == [1, 2, 1]


@pytest.mark.usefixtures("two_threads")
def test_no_more_threads_than_torch_had():
    readings = [Reading(at=0, idle=0, own=0), *2 * [Reading(at=1, idle=64, own=2)]]
    assert Cores(iter(readings).__next__).left() == 2


@pytest.mark.usefixtures("two_threads")
def test_what_others_do_while_there_is_no_work_does_not_count():
    readings = [
        Reading(at=0, idle=0, own=0),
        Reading(at=0.6, idle=0.6, own=0.6),  # one core was ours, one idle: rest
        Reading(at=60, idle=0.6, own=0.6),  # others took both in between: resume
        *2 * [Reading(at=60.1, idle=0.7, own=0.7)],
    ]
    cores = Cores(iter(readings).__next__)
    cores.rest()
    cores.resume()
    assert cores.left() == 2


class Rooms(Encoder):
    """Counts how many passes are under way; the first two go on only together."""

    def __init__(self) -> None:
        self.can_pad = True
        self.together = Barrier(2)
        self.threads: list[int] = []

    def encode(self, texts: Sequence[list[int]]) -> Vectors:
        self.threads.append(torch.get_num_threads())
        self.together.wait(timeout=30)
        return np.array([[sum(ids)] for ids in texts], dtype=np.float32)


@pytest.mark.usefixtures("two_threads")
def test_the_texts_of_one_request_are_shared_among_the_lanes():
    encoder = Rooms()
    batcher = Batcher(encoder, lanes=2, pass_tokens=1024, max_queue=4, metrics=Metrics())
    batcher.start()
    job = TextJob([[place, 1] for place in range(10)], lambda: False)
    batcher.submit(job)
    assert job.wait()[:, 0].tolist() == [place + 1 for place in range(10)]
    batcher.close()
    assert encoder.threads == [1, 1]


class Padding:
    """What an encoder asks of a tokenizer."""

    pad_token_id = 0
    padding_side = "right"


class Branching(BertModel):
    """Does something else with longer texts."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor):
        output = super().forward(input_ids=input_ids, attention_mask=attention_mask)
        if input_ids.shape[1] > 30:
            output.last_hidden_state = -output.last_hidden_state
        return output


def test_a_recorded_pass_gives_the_vectors_of_the_model_at_every_length():
    config = ModernBertConfig(
        **SMALL, num_attention_heads=4, intermediate_size=64, local_attention=16, pad_token_id=0
    )
    encoder = Encoder(Embedder(ModernBertModel(config)), Padding())
    trace_if_same(encoder, 100, worth_it_s=60)  # on a busy machine too
    assert encoder.is_quick(100)
    assert not encoder.is_quick(101)
    rng = np.random.default_rng(0)
    for lengths in ([1], [2, 7], [16], [17], [40, 3, 90], [100] * 3, [101, 4]):
        texts = [rng.integers(3, 90, length).tolist() for length in lengths]
        with torch.inference_mode():
            plain = encoder.vectors(*encoder.padded(texts))
            torch.testing.assert_close(torch.from_numpy(encoder.encode(texts)), plain)


def test_a_model_that_a_recording_cannot_follow_is_run_itself():
    encoder = Encoder(Embedder(Branching(BertConfig(**SMALL, num_attention_heads=4))), Padding())
    trace_if_same(encoder, 100, worth_it_s=60)  # on a busy machine too
    assert not encoder.is_quick(1)
