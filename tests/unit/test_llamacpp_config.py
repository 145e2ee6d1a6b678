"""The config of a llama.cpp instance: defaults, rules, and what is stored."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from marshmallow import ValidationError

from solarhost.backends.llamacpp_config import LlamaCppConfig, owner_of_flag

MINIMAL = {"model": "/models/a.gguf", "alias": "a"}


def load(**keys):
    return LlamaCppConfig().load({**MINIMAL, **keys})


def refused(**keys) -> dict[str, list[str]]:
    with pytest.raises(ValidationError) as caught:
        load(**keys)
    return caught.value.normalized_messages()


def test_defaults_are_filled_in():
    assert load() == {
        "backend_type": "llamacpp",
        "model": "/models/a.gguf",
        "alias": "a",
        "host": "0.0.0.0",
        "threads": 1,
        "n_gpu_layers": 999,
        "temp": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "ctx_size": 131072,
        "special": False,
        "mmproj_offload": True,
        "model_type": "llm",
    }


def test_a_loaded_config_loads_to_itself():
    config = load(
        devices="CUDA0, CUDA1",
        tensor_split=" 3, 1",
        chat_template_kwargs='{"a": "true", "b": [1, "false"]}',
        spec_type="draft-dspark",
        spec_draft_model="*d*",
        extra_args=["--parallel", "4"],
        future_key={"kept": [None, 1]},
    )
    assert LlamaCppConfig().load(config) == config
    assert json.loads(json.dumps(config)) == config


def test_unknown_keys_are_kept_as_they_are():
    assert load(ctxsize="x", another=None)["ctxsize"] == "x"
    assert load(another=None)["another"] is None


def test_null_and_empty_text_count_as_not_given():
    config = load(devices="", pooling=None, threads=None, api_key="", mmproj=None)
    assert config == load()


def test_a_model_or_a_source_is_needed():
    with pytest.raises(ValidationError) as caught:
        LlamaCppConfig().load({"alias": "a", "model": ""})
    assert list(caught.value.normalized_messages()) == ["model"]
    assert LlamaCppConfig().load({"alias": "a", "model_source": "repo://a:1"})["model_source"] == "repo://a:1"


@pytest.mark.parametrize("given", ["CUDA0,CUDA1", "CUDA0, CUDA1", " CUDA0 ,CUDA1 "])
def test_devices_are_stored_without_blanks(given):
    assert load(devices=given)["devices"] == "CUDA0,CUDA1"


@pytest.mark.parametrize("given", ["3,1", "3, 1", " 3 , 1 "])
def test_tensor_split_is_stored_without_blanks(given):
    assert load(tensor_split=given)["tensor_split"] == "3,1"


@pytest.mark.parametrize("given", ["3,,1", "a", "-1,2", "nan", "inf,1", "1e999", "1 2", ",", "3/1"])
def test_a_tensor_split_that_is_no_list_of_shares_is_refused(given):
    assert list(refused(tensor_split=given)) == ["tensor_split"]


@pytest.mark.parametrize("given", ["CUDA0,,CUDA1", "CUDA 0", "--port", "a;b", ","])
def test_devices_that_are_no_list_of_names_are_refused(given):
    if given == "--port":  # a name may begin with a dash, the flag's value is still one argument
        assert load(devices=given)["devices"] == given
    else:
        assert list(refused(devices=given)) == ["devices"]


@pytest.mark.parametrize(
    "given",
    [
        '{"enable_thinking": "true", "deep": {"n": ["false", "other"]}, "x": 1.5}',
        {"enable_thinking": "true", "deep": {"n": ["false", "other"]}, "x": 1.5},
        {"enable_thinking": True, "deep": {"n": [False, "other"]}, "x": 1.5},
    ],
)
def test_template_arguments_are_stored_compact_with_booleans(given):
    stored = '{"enable_thinking":true,"deep":{"n":[false,"other"]},"x":1.5}'
    assert load(chat_template_kwargs=given)["chat_template_kwargs"] == stored


@pytest.mark.parametrize(
    "given", ["[1]", "{", "nul", '{"a": NaN}', 5, ["a"], {"a": float("inf")}, "[" * 100_000, "x" * 200_000]
)
def test_template_arguments_that_are_no_object_are_refused(given):
    assert list(refused(chat_template_kwargs=given)) == ["chat_template_kwargs"]


@pytest.mark.parametrize("name", ["spec_draft_model", "spec_draft_n_max", "spec_draft_conf_min"])
def test_draft_fields_need_a_spec_type(name):
    value = {"spec_draft_model": "d.gguf", "spec_draft_n_max": 2, "spec_draft_conf_min": 0.5}[name]
    assert refused(**{name: value}) == {name: ["Needs spec_type."]}
    assert load(spec_type="draft-mtp", **{name: value})[name] == value


def test_dspark_needs_a_draft_model():
    assert list(refused(spec_type="draft-dspark")) == ["spec_draft_model"]


@pytest.mark.parametrize(
    "argument",
    [
        *("--port", "--port=1", "--host", "--reuse-port", "-m", "-m=x", "--model", "--model-url", "-mu"),
        *("-hf", "-hfr", "--hf-repo", "--hf_repo", "-hff", "--hf-file", "-dr", "--docker-repo"),
        *(
            "--api-key",
            "--api_key",
            "--api-key=x",
            "--api-key-file",
            "--api_key-file=x",
            "-hft",
            "--hf-token",
        ),
        *("-a", "--alias", "--metrics", "--slots", "--no-slots", "--no_slots", "--models-dir"),
        *("--fim-qwen-7b-spec", "--gpt-oss-20b-default", "--embd-gemma-default", "--api-prefix"),
    ],
)
def test_extra_args_may_not_set_what_the_host_sets(argument):
    assert owner_of_flag(argument)
    assert list(refused(extra_args=["--parallel", "2", argument])) == ["extra_args"]


def test_free_extra_args_are_kept_in_order():
    given = ["--parallel", "4", "--chat-template", "line one\nline two", "-ub", "512", "--no-mmap", "--ports"]
    assert load(extra_args=given)["extra_args"] == given


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("alias", ["x" * 201, "a\nb", 5, "a\x7f", "\ud800"]),
        ("host", ["/tmp/x.sock", "a b", 0, "x" * 254, "0.0.0.0,::"]),
        ("port", [0, 65536, "80", 80.5, True]),
        ("threads", [-2, "4", 1.5, True]),
        ("n_gpu_layers", [-3, 2**31, "all"]),
        ("temp", [-0.1, 2.1, "1", True, float("nan")]),
        ("top_p", [-0.1, 1.1]),
        ("min_p", [-0.1, 1.1]),
        ("top_k", [-1]),
        ("ctx_size", [-1, 2**31]),
        ("main_gpu", [-1]),
        ("split_mode", ["rows"]),
        ("cache_type_k", ["q9_0"]),
        ("rope_scaling", ["x"]),
        ("rope_scale", [0, -1]),
        ("reasoning", ["yes", True]),
        ("reasoning_budget", [-2]),
        ("model_type", ["chat"]),
        ("pooling", ["max"]),
        ("special", ["true", 1]),
        ("spec_type", ["ngram"]),
        ("model", ["a\0b", 5, "x" * 5000]),
        ("file_filters", ["*.gguf", [5]]),
        ("extra_args", ["--parallel 4", [4], ["a\0"], ["x"] * 501]),
        ("backend_type", ["vllm"]),
        ("api_key", ["a\nb", 5]),
    ],
)
def test_a_wrong_value_names_its_field(field, values):
    for value in values:
        assert list(refused(**{field: value})) == [field], value


def test_whole_numbers_may_be_written_as_floats():
    config = load(ctx_size=4096.0)
    assert config["ctx_size"] == 4096
    assert isinstance(config["ctx_size"], int)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(sorted(LlamaCppConfig().fields)), ANYTHING, max_size=6))
def test_any_json_is_loaded_or_refused(keys):
    try:
        config = load(**keys)
    except ValidationError:
        return
    assert LlamaCppConfig().load(config) == config
