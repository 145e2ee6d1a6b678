"""How hf_server uses the processor: packed weights, and as many threads as there are cores left."""

from collections.abc import Iterator

import pytest
import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, MambaConfig, MambaForCausalLM

from hf_server.engine.cores import Cores, Reading
from hf_server.engine.packing import PackedLinear, packed_if_possible

IDS = torch.tensor([[5, 6, 7, 8]])
SMALL = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2}


def run(model: torch.nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=IDS)[0]


def kinds(model: torch.nn.Module) -> set[type]:
    return {type(module) for module in model.modules()} & {PackedLinear, torch.nn.Linear}


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
    assert kinds(model) == {PackedLinear}
    torch.testing.assert_close(after, before)


def test_an_output_layer_that_shares_its_weights_with_the_embeddings_is_not_copied():
    model = LlamaForCausalLM(LlamaConfig(**SMALL, num_attention_heads=4, tie_word_embeddings=True)).eval()
    packed_if_possible(model, lambda: run(model))
    assert kinds(model) == {PackedLinear, torch.nn.Linear}
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
        Reading(at=2, idle=101, own=11.3),  # they are gone
        Reading(at=3, idle=101, own=11.6),  # and back, and more of them
    ]
    cores = Cores(iter(readings).__next__)
    seen = []
    for _ in readings[1:]:
        cores.adapt()
        seen.append(torch.get_num_threads())
    assert seen == [1, 2, 1]


@pytest.mark.usefixtures("two_threads")
def test_no_more_threads_than_torch_had():
    readings = [Reading(at=0, idle=0, own=0), Reading(at=1, idle=64, own=2)]
    Cores(iter(readings).__next__).adapt()
    assert torch.get_num_threads() == 2
