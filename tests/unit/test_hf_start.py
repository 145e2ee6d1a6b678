"""Checkpoints that can't be served: each start fails with a sentence that names the cause."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hf_server.engine.start import start
from hf_server.errors import StartFailed
from hf_server.metrics import Metrics
from hf_server.options import Options, parse
from tests.hf_models import make_tokenizer, sizes

pytest_plugins = ["tests.hf_fixtures"]


def cause(folder: object, **options: object) -> str:
    """Why a start fails."""
    with pytest.raises(StartFailed) as caught:
        start(
            Options(**{"model_id": str(folder), "model_type": "causal", "alias": "a", **options}),
            Metrics(),
            lambda _: None,
        )
    return str(caught.value)


@pytest.fixture
def copy(causal_folder, tmp_path) -> Path:
    return Path(shutil.copytree(causal_folder, tmp_path / "copy"))


def write_config(folder: Path, **fields: object) -> Path:
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def test_a_missing_shard(tmp_path):
    tokenizer = make_tokenizer()
    LlamaForCausalLM(LlamaConfig(**sizes(tokenizer))).save_pretrained(tmp_path, max_shard_size="40KB")
    tokenizer.save_pretrained(tmp_path)
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    assert "missing" in cause(tmp_path)
    assert shard.name in cause(tmp_path)


def test_a_damaged_weight_file(copy):
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "damaged or incomplete" in cause(copy)


def test_no_weight_file(copy):
    (copy / "model.safetensors").unlink()
    assert "no weight file" in cause(copy)


def test_a_broken_config(copy):
    (copy / "config.json").write_text("{broken")
    assert "configuration is broken" in cause(copy)


def test_a_config_of_nothing(copy):
    assert "names no model_type" in cause(write_config(copy, a=1))


def test_an_unknown_architecture(copy):
    assert "nonesuch" in cause(write_config(copy, model_type="nonesuch"))


def test_code_that_is_not_trusted(copy):
    auto_map = {
        "AutoConfig": "conf.C",
        "AutoModelForCausalLM": "model.M",
        "AutoTokenizer": ["tokens.T", None],
    }
    for name in ("conf", "model", "tokens"):
        (copy / f"{name}.py").write_text(f"open({str(copy / 'ran')!r}, 'w')\n")
    assert "trust_remote_code: true" in cause(write_config(copy, model_type="own", auto_map=auto_map))
    assert not (copy / "ran").exists()
    cause(copy, trust_remote_code=True)
    assert (copy / "ran").exists(), "there was something to run"


def test_shapes_that_differ_from_the_config(copy):
    config = json.loads((copy / "config.json").read_text())
    write_config(copy, **{**config, "hidden_size": 32})
    assert "do not have the shapes" in cause(copy)


def test_a_model_for_another_task(causal_folder):
    words = cause(causal_folder, model_type="classification")
    assert "lacks 1 weights" in words
    assert "score.weight" in words
    assert "image processor" in cause(causal_folder, model_type="vision")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without CUDA is meant")
def test_cuda_on_a_machine_without(causal_folder):
    assert "sees 0 CUDA devices" in cause(causal_folder, device="cuda")
    assert "sees 0 CUDA devices" in cause(causal_folder, device="cuda:3")


def test_a_device_that_is_none(causal_folder):
    assert "is no device" in cause(causal_folder, device="toaster")


def test_a_path_that_is_not_there():
    assert "there is no model '/nowhere/at/all'" in cause("/nowhere/at/all")


def test_labels_of_the_wrong_number(classifier_folder):
    words = cause(classifier_folder, model_type="classification", labels=("yes", "no"))
    assert "labels names 2 classes" in words


def test_options_come_from_arguments_and_environment(monkeypatch):
    monkeypatch.setenv("SOLAR_API_KEY", 'k1, "k,2",')
    given = ["--model-id=m", "--model-type=classification", "--alias=-a", "--port=1"]
    options = parse([*given, '--labels=no,"yes, sure"'])
    assert options.keys == ("k1", "k,2")
    assert options.labels == ("no", "yes, sure")
    assert options.alias == "-a"
    assert (options.max_length, options.max_queue) == (512, 256)


@pytest.mark.parametrize("wrong", ["--port=x", "--port=70000", "--max-batch=0", "--dtype=int4"])
def test_a_wrong_option_ends_with_usage(wrong, capsys):
    with pytest.raises(SystemExit):
        parse(["--model-id=m", "--model-type=causal", "--alias=a", "--port=1", wrong])
    assert "error:" in capsys.readouterr().err
