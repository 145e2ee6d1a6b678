"""The llama.cpp backend: one `llama-server` for each instance."""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from marshmallow import Schema

from solarhost.backends.base import Activity, CannotStart, Command, Launch, Probe, Usage
from solarhost.backends.child import ask
from solarhost.backends.llamacpp_config import LlamaCppConfig
from solarhost.backends.llamacpp_failures import explain
from solarhost.backends.llamacpp_log import LlamaCppActivity, read_usage
from solarhost.errors import InvalidRequest
from solarhost.files import is_file, is_folder
from solarhost.modelstore.selection import choose_file, choose_weights

_ENDPOINTS = {
    "llm": ["/v1/chat/completions", "/v1/completions", "/v1/models"],
    "embedding": ["/v1/embeddings", "/v1/models"],
    "reranker": ["/v1/rerank", "/v1/models"],
}

# Config field and its flag, in the order of the command line. Absent fields are left out.
_FLAGS = (
    ("threads", "--threads"),
    ("n_gpu_layers", "--n-gpu-layers"),
    ("devices", "--device"),
    ("split_mode", "--split-mode"),
    ("tensor_split", "--tensor-split"),
    ("main_gpu", "--main-gpu"),
    ("ot", "-ot"),
    ("ctx_size", "--ctx-size"),
    ("cache_type_k", "-ctk"),
    ("cache_type_v", "-ctv"),
    ("rope_scaling", "--rope-scaling"),
    ("rope_scale", "--rope-scale"),
    ("yarn_orig_ctx", "--yarn-orig-ctx"),
    ("temp", "--temp"),
    ("top_p", "--top-p"),
    ("top_k", "--top-k"),
    ("min_p", "--min-p"),
    ("chat_template_kwargs", "--chat-template-kwargs"),
    ("reasoning", "--reasoning"),
    ("reasoning_budget", "--reasoning-budget"),
)
_SPECULATION_FLAGS = (
    ("spec_type", "--spec-type"),
    ("spec_draft_n_max", "--spec-draft-n-max"),
    ("spec_draft_conf_min", "--spec-draft-conf-min"),
)
_GET_ONE = "install llama.cpp (https://github.com/ggml-org/llama.cpp), or run `make run`, which builds one"
_SHARD = re.compile(r"-\d{5}-of-(\d{5}\.gguf)$", re.IGNORECASE)


class LlamaCpp:
    """Stateless; safe from any thread. `executable` is the path from the settings, or empty."""

    backend_type = "llamacpp"
    schema: type[Schema] = LlamaCppConfig
    final_exit_codes: frozenset[int] = frozenset()  # it ends with 1 whatever it was

    def __init__(self, executable: str):
        self._executable = executable

    def endpoints(self, config: Mapping[str, Any]) -> list[str]:
        return list(_ENDPOINTS[config["model_type"]])

    def capabilities(self, config: Mapping[str, Any]) -> list[str] | None:
        return ["completion", "multimodal"] if "mmproj" in config else None

    def context_size(self, config: Mapping[str, Any]) -> int | None:
        return config["ctx_size"] or None  # 0 leaves it to the model, `probe` reads it

    def served_model_name(self, config: Mapping[str, Any]) -> str:
        return str(config["alias"])

    def command(self, config: Mapping[str, Any], launch: Launch) -> Command:
        """See `Backend.command`. The keys travel in LLAMA_API_KEY."""
        executable = self.find_executable()
        model, folder = _find_model(config, launch.model_folder)
        argv = [str(executable), "--host", config["host"], "--port", str(launch.port)]
        argv += ["--model", str(_existing(model, "model")), "--alias", config["alias"]]
        argv += _flags(config, _FLAGS)
        if "chat_template_file" in config:
            template = _existing(Path(config["chat_template_file"]), "chat_template_file")
            argv += ["--chat-template-file", str(template)]
        if "mmproj" in config:
            argv += ["--mmproj", str(_existing(choose_file(folder, config["mmproj"]), "mmproj"))]
            if not config["mmproj_offload"]:
                argv.append("--no-mmproj-offload")
        if config["special"]:
            argv.append("--special")
        argv += _task_flags(config, folder)
        argv += ["--no-warmup", "--jinja", "--metrics", "--slots", *config.get("extra_args", ())]
        return Command(argv=tuple(argv), environment={"LLAMA_API_KEY": _key_row(launch.keys)})

    def files(self, config: Mapping[str, Any], model_folder: Path | None) -> list[Path]:
        try:
            model, folder = _find_model(config, model_folder)
        except (CannotStart, InvalidRequest):
            return []
        found = _with_shards(model)
        for name in ("mmproj", "spec_draft_model"):
            if name in config:
                try:
                    found += _with_shards(choose_file(folder, config[name]))
                except InvalidRequest:
                    continue  # not there, so not in use
        if "chat_template_file" in config:
            found.append(Path(config["chat_template_file"]))
        return [path for path in found if is_file(path)]

    def activity(self) -> Activity:
        return LlamaCppActivity()

    def usage(self, metrics: str) -> Usage:
        return read_usage(metrics)

    def probe(self, base_url: str, headers: Mapping[str, str]) -> Probe:
        answer = ask(f"{base_url}/props", headers)
        try:
            return Probe(context_size=int(answer["default_generation_settings"]["n_ctx"]))
        except (LookupError, TypeError, ValueError, OverflowError):
            return Probe()  # an older or a busy server: the configured value stands

    def explain_failure(self, lines: Sequence[str], exit_code: int | None) -> str | None:
        return explain(lines, exit_code)

    def find_executable(self) -> Path:
        """Raises CannotStart: there is none."""
        if self._executable:
            path = Path(self._executable)
            if is_folder(path):
                path /= "llama-server"
            if not (is_file(path) and os.access(path, os.X_OK)):
                raise CannotStart(
                    f"LLAMA_SERVER_PATH={path} is not an executable file: correct it, or {_GET_ONE}"
                )
            return path.absolute()
        found = shutil.which("llama-server")
        if found is None:
            raise CannotStart(f"llama-server is neither on PATH nor named by LLAMA_SERVER_PATH: {_GET_ONE}")
        return Path(found).absolute()


def _find_model(config: Mapping[str, Any], model_folder: Path | None) -> tuple[Path, Path]:
    """The GGUF to serve, and the folder in which its companions are looked up.

    A `model` that exists comes first; control sends the source along with the path that it once
    had on another host.
    """
    named = Path(config["model"]) if "model" in config else None
    if named is not None and (is_file(named) or is_folder(named) or model_folder is None):
        place = named
    elif model_folder is not None:
        place = model_folder
    else:
        raise CannotStart(f"the model {config['model_source']} has not been pulled")
    if not is_folder(place):
        return place, place.parent
    if "model_file" in config:
        return choose_file(place, config["model_file"]), place
    return choose_weights(place), place


def _task_flags(config: Mapping[str, Any], folder: Path) -> list[str]:
    """The flags that depend on what the model is for."""
    match config["model_type"]:
        case "embedding":
            return ["--embedding", *_flags(config, [("pooling", "--pooling")])]
        case "reranker":
            return ["--rerank"]
    flags = _flags(config, _SPECULATION_FLAGS)
    if "spec_draft_model" in config:
        draft = _existing(choose_file(folder, config["spec_draft_model"]), "spec_draft_model")
        flags += ["--spec-draft-model", str(draft)]
    return flags


def _flags(config: Mapping[str, Any], table: Sequence[tuple[str, str]]) -> list[str]:
    return [text for field, flag in table if field in config for text in (flag, str(config[field]))]


def _existing(path: Path, field: str) -> Path:
    if not is_file(path):
        raise CannotStart(f"{field}: there is no file {path}, or this user may not see it")
    if not os.access(path, os.R_OK):
        raise CannotStart(f"{field}: the file {path} can't be read by this user")
    return path


def _with_shards(path: Path) -> list[Path]:
    """A GGUF and, when it is the first of a split one, the rest that llama-server loads with it."""
    match = _SHARD.search(path.name)
    if match is None:
        return [path]
    stem = path.name[: match.start()]
    wanted = re.compile(re.escape(stem) + r"-\d{5}-of-" + re.escape(match[1]))
    with suppress(OSError):
        return sorted(other for other in path.parent.iterdir() if wanted.fullmatch(other.name))
    return [path]


def _key_row(keys: Sequence[str]) -> str:
    """One CSV row, as llama-server reads it: a key with a comma or a quote is quoted."""
    quoted = ('"' + key.replace('"', '""') + '"' if "," in key or '"' in key else key for key in keys)
    return ",".join(quoted)
