"""The command line of a llama-server, and which files it uses."""

from itertools import pairwise
from pathlib import Path

import pytest

from solarhost.backends.base import CannotStart, Launch
from solarhost.backends.llamacpp import LlamaCpp
from solarhost.errors import InvalidRequest


@pytest.fixture
def executable(tmp_path: Path) -> Path:
    path = tmp_path / "llama-server"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    for name, size in (("m-Q4.gguf", 4), ("m-Q8.gguf", 8), ("mmproj-F16.gguf", 9), ("draft.gguf", 1)):
        (path / name).write_bytes(b"x" * size)
    return path


@pytest.fixture
def backend(executable: Path) -> LlamaCpp:
    return LlamaCpp(str(executable))


def config_of(**keys):
    return LlamaCpp.schema().load({"alias": "a:1", **keys})


def launch(folder: Path | None = None, keys: tuple[str, ...] = ("k1",)) -> Launch:
    return Launch(port=3500, keys=keys, model_folder=folder)


def pairs(argv: tuple[str, ...]) -> dict[str, str]:
    """Each argument and the one after it; enough to look up a flag's value."""
    return dict(pairwise(argv))


def test_a_plain_config_gives_this_command(backend, executable, folder):
    model = folder / "m-Q4.gguf"
    command = backend.command(config_of(model=str(model), threads=4, temp=0.7), launch())
    assert command.argv == (
        *(str(executable), "--host", "0.0.0.0", "--port", "3500", "--model", str(model), "--alias", "a:1"),
        *("--threads", "4", "--n-gpu-layers", "999", "--ctx-size", "131072"),
        *("--temp", "0.7", "--top-p", "1.0", "--top-k", "0", "--min-p", "0.0"),
        *("--no-warmup", "--jinja", "--metrics", "--slots"),
    )


def test_every_field_reaches_its_flag(backend, folder, tmp_path):
    template = tmp_path / "t.jinja"
    template.touch()
    config = config_of(
        model=str(folder),
        model_file="*Q4*",
        mmproj="mmproj-*.gguf",
        mmproj_offload=False,
        devices="CUDA0, CUDA1",
        split_mode="row",
        tensor_split="3, 1",
        main_gpu=1,
        ot="exps=CPU",
        cache_type_k="q8_0",
        cache_type_v="q4_0",
        rope_scaling="yarn",
        rope_scale=2,
        yarn_orig_ctx=32768,
        chat_template_file=str(template),
        chat_template_kwargs={"x": "true"},
        reasoning="off",
        reasoning_budget=0,
        special=True,
        spec_type="draft-dspark",
        spec_draft_model="draft*",
        spec_draft_n_max=7,
        spec_draft_conf_min=0.5,
        extra_args=["--parallel", "4"],
    )
    argv = backend.command(config, launch()).argv
    given = pairs(argv)
    assert given["--model"] == str(folder / "m-Q4.gguf")
    assert given["--mmproj"] == str(folder / "mmproj-F16.gguf")
    assert {"--no-mmproj-offload", "--special"} <= set(argv)
    expected = {
        "--device": "CUDA0,CUDA1",
        "--split-mode": "row",
        "--tensor-split": "3,1",
        "--main-gpu": "1",
        "-ot": "exps=CPU",
        "-ctk": "q8_0",
        "-ctv": "q4_0",
        "--rope-scaling": "yarn",
        "--rope-scale": "2.0",
        "--yarn-orig-ctx": "32768",
        "--chat-template-file": str(template),
        "--chat-template-kwargs": '{"x":true}',
        "--reasoning": "off",
        "--reasoning-budget": "0",
        "--spec-type": "draft-dspark",
        "--spec-draft-model": str(folder / "draft.gguf"),
        "--spec-draft-n-max": "7",
        "--spec-draft-conf-min": "0.5",
    }
    assert {flag: given.get(flag) for flag in expected} == expected
    assert argv[-2:] == ("--parallel", "4")


@pytest.mark.parametrize("model_type", ["embedding", "reranker"])
def test_speculation_is_for_language_models_only(backend, folder, model_type):
    config = config_of(
        model=str(folder), model_file="*Q4*", model_type=model_type, spec_type="draft-mtp", pooling="mean"
    )
    argv = backend.command(config, launch()).argv
    assert "--spec-type" not in argv
    assert ("--rerank" in argv) == (model_type == "reranker")
    assert ("--embedding" in argv) == (model_type == "embedding")
    assert ("--pooling" in argv) == (model_type == "embedding")


def test_keys_are_in_the_environment_and_never_in_the_command(backend, folder):
    command = backend.command(config_of(model=str(folder / "m-Q4.gguf")), launch(keys=("k,1", 'q"2', "k3")))
    assert command.environment == {"LLAMA_API_KEY": '"k,1","q""2",k3'}
    assert not any(key in argument for key in ("k,1", 'q"2', "k3") for argument in command.argv)


def test_a_source_is_looked_up_in_its_folder(backend, folder):
    config = config_of(model_source="repo://m:1", model_file="*Q8*")
    assert pairs(backend.command(config, launch(folder)).argv)["--model"] == str(folder / "m-Q8.gguf")


def test_a_source_may_be_a_file(backend, folder):
    config = config_of(model_source="repo://m:1/m-Q4.gguf", mmproj="mmproj*")
    given = pairs(backend.command(config, launch(folder / "m-Q4.gguf")).argv)
    assert given["--model"] == str(folder / "m-Q4.gguf")
    assert given["--mmproj"] == str(folder / "mmproj-F16.gguf")


def test_a_path_from_another_host_gives_way_to_the_source(backend, folder):
    config = config_of(model="/not/here/m.gguf", model_source="repo://m:1")
    assert pairs(backend.command(config, launch(folder)).argv)["--model"] == str(folder / "m-Q8.gguf")
    config = config_of(model=str(folder / "m-Q4.gguf"), model_source="repo://m:1")
    assert pairs(backend.command(config, launch(folder)).argv)["--model"] == str(folder / "m-Q4.gguf")


def test_a_missing_executable_says_how_to_get_one(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    config = config_of(model=str(folder / "m-Q4.gguf"))
    with pytest.raises(CannotStart, match=r"install llama\.cpp"):
        LlamaCpp("").command(config, launch())
    with pytest.raises(CannotStart, match="LLAMA_SERVER_PATH=/none is not an executable file"):
        LlamaCpp("/none").command(config, launch())


def test_a_folder_stands_for_the_executable_in_it(folder, executable, tmp_path):
    config = config_of(model=str(folder / "m-Q4.gguf"))
    assert LlamaCpp(str(executable.parent)).command(config, launch()).argv[0] == str(executable)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CannotStart, match="empty/llama-server is not an executable file"):
        LlamaCpp(str(tmp_path / "empty")).command(config, launch())


def test_the_executable_is_found_on_path(folder, executable, monkeypatch):
    monkeypatch.setenv("PATH", str(executable.parent))
    argv = LlamaCpp("").command(config_of(model=str(folder / "m-Q4.gguf")), launch()).argv
    assert argv[0] == str(executable)


# The last but one is no file that ends, and the last has a name that none can have.
@pytest.mark.parametrize("path", ["/none/x.gguf", "/dev/zero", "/none/" + "x" * 300])
@pytest.mark.parametrize("field", ["model", "mmproj", "spec_draft_model", "chat_template_file"])
def test_a_missing_file_names_its_field(backend, folder, field, path):
    keys = {"model": str(folder / "m-Q4.gguf"), "spec_type": "draft-mtp", field: path}
    with pytest.raises(CannotStart, match=f"^{field}: there is no file {path}, or this user may not see it$"):
        backend.command(config_of(**keys), launch())


def test_a_source_that_was_not_pulled_cannot_start(backend):
    with pytest.raises(CannotStart, match="repo://m:1 has not been pulled"):
        backend.command(config_of(model_source="repo://m:1"), launch())


def test_a_pattern_that_matches_nothing_is_the_requests_fault(backend, folder):
    with pytest.raises(InvalidRequest, match="Q2"):
        backend.command(config_of(model=str(folder), model_file="*Q2*"), launch())


def test_files_are_those_on_disk_with_all_shards(backend, folder):
    for number in (1, 2, 3):
        (folder / f"big-0000{number}-of-00003.gguf").write_bytes(b"x" * 20)
    config = config_of(
        model_source="repo://m:1", mmproj="mmproj*", spec_type="draft-mtp", spec_draft_model="no*"
    )
    assert backend.files(config, folder) == [
        *(folder / f"big-0000{number}-of-00003.gguf" for number in (1, 2, 3)),
        folder / "mmproj-F16.gguf",
    ]
    for gone in ("/none.gguf", "/none/m-00001-of-00002.gguf", "/" + "x" * 300):
        assert backend.files(config_of(model=gone), None) == []
    assert backend.files(config, None) == []


def test_what_an_instance_offers_follows_from_its_config(backend):
    llm = config_of(model="/m.gguf", ctx_size=0)
    assert backend.endpoints(llm) == ["/v1/chat/completions", "/v1/completions", "/v1/models"]
    assert backend.capabilities(llm) is None
    assert backend.context_size(llm) is None
    assert backend.served_model_name(llm) == "a:1"
    assert backend.capabilities(config_of(model="/m.gguf", mmproj="p")) == ["completion", "multimodal"]
    embedding = config_of(model="/m.gguf", model_type="embedding", ctx_size=512)
    assert backend.endpoints(embedding) == ["/v1/embeddings", "/v1/models"]
    assert backend.context_size(embedding) == 512
    assert backend.endpoints(config_of(model="/m.gguf", model_type="reranker"))[0] == "/v1/rerank"
