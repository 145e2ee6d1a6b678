"""The HuggingFace backends: one `python -m hf_server` for each instance."""

import csv
import importlib.util
import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marshmallow import Schema

from solarhost.backends.base import Activity, CannotStart, Command, Launch, Probe, Usage
from solarhost.backends.child import ask
from solarhost.backends.huggingface_config import (
    CausalConfig,
    ClassificationConfig,
    EmbeddingConfig,
    VisionConfig,
)
from solarhost.backends.huggingface_failures import explain
from solarhost.backends.huggingface_log import HuggingFaceActivity, read_usage
from solarhost.files import is_file, is_folder
from solarhost.settings import Settings

INSTALL = "pip install 'solar-host[huggingface]'"
_GAVE_UP = 3  # hf_server could not load its model, and said why
_NEEDED = ("torch", "transformers", "PIL", "orjson")


@dataclass(frozen=True, slots=True)
class _Kind:
    schema: type[Schema]
    endpoints: tuple[str, ...]
    capabilities: tuple[str, ...] | None = None


_KINDS = {
    "causal": _Kind(CausalConfig, ("/v1/chat/completions", "/v1/completions", "/v1/models", "/health")),
    "classification": _Kind(ClassificationConfig, ("/v1/classify", "/v1/models", "/health")),
    "embedding": _Kind(EmbeddingConfig, ("/v1/embeddings", "/v1/models", "/health")),
    "vision": _Kind(
        VisionConfig, ("/v1/chat/completions", "/v1/models", "/health"), ("completion", "multimodal")
    ),
}


class HuggingFace:
    """One kind of model. Stateless; safe from any thread.

    Args:
        kind: causal, classification, embedding or vision.
        environment: what the server needs to reach the hub (token, mirror, CA bundle).
    """

    def __init__(self, kind: str, environment: Mapping[str, str]):
        self._kind = kind
        self._environment = dict(environment)
        self._is = _KINDS[kind]
        self.backend_type = f"huggingface_{kind}"
        self.schema = self._is.schema
        self.final_exit_codes = frozenset({_GAVE_UP})

    def endpoints(self, config: Mapping[str, Any]) -> list[str]:  # noqa: ARG002
        return list(self._is.endpoints)

    def capabilities(self, config: Mapping[str, Any]) -> list[str] | None:  # noqa: ARG002
        return None if self._is.capabilities is None else list(self._is.capabilities)

    def context_size(self, config: Mapping[str, Any]) -> int | None:
        return int(config["max_length"])

    def served_model_name(self, config: Mapping[str, Any]) -> str:
        return str(config["alias"])

    def command(self, config: Mapping[str, Any], launch: Launch) -> Command:
        """See `Backend.command`. The keys travel in SOLAR_API_KEY; a local model needs no hub."""
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise CannotStart(f"{', '.join(missing)} not installed; HuggingFace models need: {INSTALL}")
        model, is_local = _find_model(config, launch.model_folder)
        environment = {**self._environment, "SOLAR_API_KEY": _row(launch.keys)}
        if is_local:
            environment["HF_HUB_OFFLINE"] = "1"
        argv = [sys.executable, "-m", "hf_server", f"--model-id={model}", f"--model-type={self._kind}"]
        argv += [f"--alias={config['alias']}", f"--host={config['host']}", f"--port={launch.port}"]
        argv += [f"--device={config['device']}", f"--dtype={config['dtype']}"]
        argv.append(f"--max-length={config['max_length']}")
        for flag in ("trust_remote_code", "use_flash_attention", "normalize_embeddings"):
            if config.get(flag):
                argv.append(f"--{flag.replace('_', '-')}")
        if config.get("labels"):
            argv.append(f"--labels={_row(config['labels'])}")
        return Command(argv=tuple(argv), environment=environment)

    def files(self, config: Mapping[str, Any], model_folder: Path | None) -> list[Path]:
        try:
            model, is_local = _find_model(config, model_folder)
        except CannotStart:
            return []
        return [path for path in Path(model).rglob("*") if is_file(path)] if is_local else []

    def activity(self) -> Activity:
        return HuggingFaceActivity()

    def usage(self, metrics: str) -> Usage:
        return read_usage(metrics)

    def probe(self, base_url: str, headers: Mapping[str, str]) -> Probe:
        answer = ask(f"{base_url}/v1/models", headers)
        try:
            return Probe(context_size=int(answer["data"][0]["context_size"]))
        except (LookupError, TypeError, ValueError, OverflowError):
            return Probe()

    def explain_failure(self, lines: Sequence[str], exit_code: int | None) -> str | None:
        return explain(lines, exit_code)


def huggingface_backends(settings: Settings) -> list[HuggingFace]:
    """The four of them; what the settings know of the hub reaches the servers by environment."""
    values = {
        "HF_TOKEN": settings.hf_token,
        "HF_ENDPOINT": settings.hf_endpoint,
        "SSL_CERT_FILE": settings.ssl_cert_file,
        "REQUESTS_CA_BUNDLE": settings.requests_ca_bundle,
    }
    environment = {name: value for name, value in values.items() if value}
    return [HuggingFace(kind, environment) for kind in _KINDS]


def _find_model(config: Mapping[str, Any], model_folder: Path | None) -> tuple[str, bool]:
    """What to load, and whether that is a folder here.

    A `model_id` that is a folder comes first; control sends the source along with the path that it
    once had on another host.
    """
    named = config.get("model_id")
    if named is not None and is_folder(Path(named)):
        return str(Path(named).absolute()), True
    if model_folder is not None:
        if not is_folder(model_folder):
            raise _no_folder(model_folder)
        return str(model_folder), True
    if named is None:
        raise CannotStart(f"the model {config['model_source']} has not been pulled")
    if is_file(Path(named)):
        raise _no_folder(named)
    if named.startswith(("/", "./", "../", "~")):
        raise CannotStart(f"model_id: there is no folder {named}")
    return named, False


def _no_folder(path: Path | str) -> CannotStart:
    return CannotStart(
        f"{path} is not a folder; a HuggingFace model is one, with its config; a GGUF file is for llamacpp"
    )


def _row(values: Sequence[str]) -> str:
    """One CSV row: a value with a comma or a quote is quoted."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue()
