"""The command of a HuggingFace instance, and what its log, metrics and last lines mean."""

import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from marshmallow import INCLUDE

from solarhost.backends.base import CannotStart, Launch
from solarhost.backends.huggingface import HuggingFace, huggingface_backends
from solarhost.backends.llamacpp import LlamaCpp
from solarhost.backends.registry import Backends
from solarhost.errors import InvalidRequest
from solarhost.settings import Settings

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
LOG = """\
time=2026-11-30T05:25:15.403+00:00 level=info event=start model=m type=causal stage=importing
time=2026-11-30T05:25:42.381+00:00 level=info event=ready model=tiny device=cpu duration_s=26.9783
time=2026-11-30T05:25:50.000+00:00 level=info event=request_start id=chatcmpl-1 \
endpoint=/v1/chat/completions prompt_tokens=18 inputs=1 stream=true
time=2026-11-30T05:25:50.040+00:00 level=info event=first_token id=chatcmpl-1 ttft_s=0.0361 cached_tokens=17
time=2026-11-30T05:25:51.000+00:00 level=info event=progress active=1 waiting=0 generated_tokens=12 tps=20.0
time=2026-11-30T05:25:52.000+00:00 level=info event=request_end id=chatcmpl-1 endpoint=/v1/chat/completions \
status=200 prompt_tokens=18 generated_tokens=21 cached_tokens=17 duration_s=2.0000 ttft_s=0.0361 \
decode_s=1.0000 finish_reason=length
""".splitlines()
START_FAILED = (
    "time=2026-11-30T05:25:52.000+00:00 level=error event=start_failed "
    'message="a file of the checkpoint is missing: \\"x\\"; download the model again"'
)


@pytest.fixture
def backends() -> Backends:
    settings = Settings(hf_token="hf_secret", hf_endpoint="https://mirror.example")
    return Backends([LlamaCpp(""), *huggingface_backends(settings)])


def command(backends: Backends, given: dict, *, folder: Path | None = None, keys: tuple[str, ...] = ("k",)):
    config, warnings = backends.check({"alias": "a:1", **given})
    assert warnings == []
    return backends.of(config).command(config, Launch(port=3501, keys=keys, model_folder=folder))


def test_a_causal_command(backends, tmp_path):
    made = command(
        backends,
        {"backend_type": "huggingface_causal", "model_id": str(tmp_path), "trust_remote_code": True},
        keys=("k1", "k,2"),
    )
    assert made.argv == (
        *(sys.executable, "-m", "hf_server", f"--model-id={tmp_path}", "--model-type=causal", "--alias=a:1"),
        *("--host=0.0.0.0", "--port=3501", "--device=auto", "--dtype=auto", "--max-length=4096"),
        *("--trust-remote-code", "--use-flash-attention"),
    )
    assert made.environment == {
        "HF_TOKEN": "hf_secret",
        "HF_ENDPOINT": "https://mirror.example",
        "SOLAR_API_KEY": 'k1,"k,2"',
        "HF_HUB_OFFLINE": "1",
    }


@pytest.mark.parametrize("kind", ["causal", "classification", "embedding", "vision"])
def test_the_command_never_lets_the_server_fetch_addresses(kind):
    backend = HuggingFace(kind, {})
    config = backend.schema(unknown=INCLUDE).load({"alias": "a", "model_id": "m", "allow_image_urls": True})
    made = backend.command(config, Launch(port=1, keys=("k",), model_folder=None))
    assert not [argument for argument in made.argv if "url" in argument]


def test_labels_and_normalization_reach_their_flags(backends, tmp_path):
    model = {"model_id": str(tmp_path)}
    classes = command(
        backends, {**model, "backend_type": "huggingface_classification", "labels": ["no", "yes, sure"]}
    )
    assert '--labels=no,"yes, sure"' in classes.argv
    assert "--max-length=512" in classes.argv
    embedding = command(backends, {**model, "backend_type": "huggingface_embedding"})
    assert "--normalize-embeddings" in embedding.argv
    plain = {**model, "backend_type": "huggingface_embedding", "normalize_embeddings": False}
    assert "--normalize-embeddings" not in command(backends, plain).argv


def test_a_hub_id_is_not_offline(backends):
    made = command(backends, {"backend_type": "huggingface_causal", "model_id": "org/model"})
    assert "--model-id=org/model" in made.argv
    assert "HF_HUB_OFFLINE" not in made.environment


def test_a_pulled_source_stands_in_for_a_path_of_another_host(backends, tmp_path):
    given = {
        "backend_type": "huggingface_vision",
        "model_source": "huggingface://org/model",
        "model_id": "/elsewhere/model",
    }
    made = command(backends, given, folder=tmp_path)
    assert f"--model-id={tmp_path}" in made.argv
    assert made.environment["HF_HUB_OFFLINE"] == "1"


def test_a_path_that_is_not_there_can_not_start(backends):
    with pytest.raises(CannotStart, match="there is no folder /nowhere"):
        command(backends, {"backend_type": "huggingface_causal", "model_id": "/nowhere"})


def test_a_file_that_is_no_folder_is_not_called_missing(backends, tmp_path):
    file = tmp_path / "model.gguf"
    file.touch()
    with pytest.raises(CannotStart, match=r"model\.gguf is not a folder.* a GGUF file is for llamacpp"):
        command(backends, {"backend_type": "huggingface_causal", "model_id": str(file)})


def test_missing_packages_can_not_start_and_name_the_install_command(backends, tmp_path, monkeypatch):
    monkeypatch.setattr("solarhost.backends.huggingface._NEEDED", ("no_such_package",))
    with pytest.raises(CannotStart, match=r"no_such_package not installed.*pip install"):
        command(backends, {"backend_type": "huggingface_causal", "model_id": str(tmp_path)})


@pytest.mark.parametrize(
    ("kind", "endpoints", "capabilities"),
    [
        ("causal", ["/v1/chat/completions", "/v1/completions", "/v1/models", "/health"], None),
        ("classification", ["/v1/classify", "/v1/models", "/health"], None),
        ("embedding", ["/v1/embeddings", "/v1/models", "/health"], None),
        ("vision", ["/v1/chat/completions", "/v1/models", "/health"], ["completion", "multimodal"]),
    ],
)
def test_each_kind_says_what_it_offers(backends, kind, endpoints, capabilities):
    config, _ = backends.check({"backend_type": f"huggingface_{kind}", "model_id": "org/m", "alias": "a"})
    backend = backends.of(config)
    assert backend.endpoints(config) == endpoints
    assert backend.capabilities(config) == capabilities
    assert config["backend_type"] == f"huggingface_{kind}"


def test_a_config_without_a_type_is_told_by_its_fields(backends):
    assert backends.check({"alias": "a", "model_id": "m"})[0]["backend_type"] == "huggingface_causal"
    labelled = {"alias": "a", "model_id": "m", "labels": ["x"]}
    assert backends.check(labelled)[0]["backend_type"] == "huggingface_classification"


@pytest.mark.parametrize(
    "fields",
    [
        {"model_id": None},
        {"device": "gpu"},
        {"device": "cuda:x"},
        {"dtype": "int4"},
        {"max_length": 0},
        {"max_length": "512"},
        {"trust_remote_code": "yes"},
        {"use_flash_attention": 1},
    ],
)
def test_a_wrong_value_is_refused(backends, fields):
    given = {"backend_type": "huggingface_causal", "alias": "a", "model_id": "org/m", **fields}
    with pytest.raises(InvalidRequest):
        backends.check(given)


def test_files_are_those_of_the_folder(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    backend = HuggingFace("causal", {})
    assert backend.files({"model_id": str(tmp_path)}, None) == [tmp_path / "config.json"]
    assert backend.files({"model_id": "org/model"}, None) == []


def test_a_request_is_followed_from_prefill_to_its_counts():
    activity = HuggingFace("causal", {}).activity()
    activity.feed(LOG[:1], NOW)
    assert not activity.ready_hint
    activity.feed(LOG[1:2], NOW)
    assert activity.ready_hint
    assert activity.feed(LOG[2:3], NOW)
    assert (activity.state.busy, activity.state.phase, activity.state.active_slots) == (True, "prefill", 1)
    assert activity.state.prefill_prompt_tokens == 18
    activity.feed(LOG[3:4], NOW)
    assert (activity.state.phase, activity.state.prefill_progress) == ("generating", 1.0)
    activity.feed(LOG[4:5], NOW)
    assert (activity.state.generated_tokens, activity.state.decode_ms_per_token) == (12, 50.0)
    assert activity.feed(LOG[5:], NOW)
    assert not activity.state.busy
    (generation,) = activity.generations
    assert generation.as_json() == {
        "slot_id": None,
        "task_id": "chatcmpl-1",
        "prompt_tokens": 18,
        "generated_tokens": 21,
        "cached_tokens": 17,
        "prompt_eval_tokens": 1,
        "total_tokens": 39,
        "decode_tps": 20.0,
        "decode_ms_per_token": 50.0,
        "source": "log",
        "started_at": "2026-11-30T05:25:50+00:00",
        "finished_at": "2026-11-30T05:25:52+00:00",
    }


def test_an_end_without_its_start_still_counts():
    activity = HuggingFace("causal", {}).activity()
    activity.feed(LOG[5:], NOW)
    assert activity.generations[0].generated_tokens == 21


def test_a_failed_request_is_no_generation():
    activity = HuggingFace("causal", {}).activity()
    activity.feed([LOG[2], LOG[5].replace("status=200", "status=499")], NOW)
    assert activity.generations == ()
    assert not activity.state.busy


def test_metrics_overrule_a_start_whose_end_was_lost():
    backend = HuggingFace("causal", {})
    activity = backend.activity()
    activity.feed(LOG[2:3], NOW)
    idle = "hf_server_requests_processing 0.0\nhf_server_requests_waiting 0.0\n"
    assert activity.correct(backend.usage(idle))
    assert not activity.state.busy


def test_usage_reads_what_is_there():
    text = (
        "# HELP hf_server_prompt_tokens_total Prompt tokens.\nhf_server_prompt_tokens_total 60.0\n"
        "hf_server_generated_tokens_total 20.0\nhf_server_requests_waiting 3.0\n"
        "hf_server_kv_cache_usage_ratio 0.25\nsomething_else 7\n"
    )
    usage = HuggingFace("causal", {}).usage(text)
    assert (usage.prompt_tokens_total, usage.generated_tokens_total) == (60, 20)
    assert (usage.cached_tokens_total, usage.requests_processing) == (None, None)
    assert (usage.requests_deferred, usage.kv_cache_usage_ratio) == (3, 0.25)


@pytest.mark.parametrize(
    ("lines", "code", "words"),
    [
        (["noise", START_FAILED, "more noise"], 3, 'a file of the checkpoint is missing: "x"'),
        (["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"], 1, "out of memory"),
        (["[ERROR] Worker (pid:7) was sent SIGKILL! Perhaps out of memory?"], 4, "host memory runs out"),
        (["/usr/bin/python: No module named hf_server"], 1, "a Python package is missing"),
        (["[ERROR] Connection in use: ('127.0.0.1', 3500)"], 1, "port is taken"),
        ([], -9, "SIGKILL"),
    ],
)
def test_a_failure_is_explained(lines, code, words):
    assert words in (HuggingFace("causal", {}).explain_failure(lines, code) or "")


def test_an_unknown_failure_is_left_alone():
    assert HuggingFace("causal", {}).explain_failure(["hello"], 1) is None


def test_the_model_field_of_llama_cpp_is_told_from_a_missing_model(backends):
    with pytest.raises(InvalidRequest) as refused:
        backends.check({"backend_type": "huggingface_causal", "model": "/m.gguf", "alias": "a"})
    assert "model is a field of the llamacpp backend" in str(refused.value.errors)
