"""The command line, read once."""

import argparse
import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

ModelType = Literal["causal", "classification", "embedding", "vision"]
MODEL_TYPES: tuple[ModelType, ...] = ("causal", "classification", "embedding", "vision")
DTYPES = ("auto", "float16", "bfloat16", "float32")

CAPABILITIES: dict[ModelType, list[str]] = {
    "causal": ["completion"],
    "classification": ["classification"],
    "embedding": ["embedding"],
    "vision": ["completion", "multimodal"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What one server serves, and within which limits."""

    model_id: str
    model_type: ModelType
    alias: str
    host: str = "127.0.0.1"
    port: int = 0
    device: str = "auto"
    dtype: str = "auto"
    max_length: int = 4096
    trust_remote_code: bool = False
    use_flash_attention: bool = False
    labels: tuple[str, ...] | None = None
    normalize_embeddings: bool = False
    allow_image_urls: bool = False
    max_batch: int = 16
    max_queue: int = 64
    kv_tokens: int | None = None
    keys: tuple[str, ...] = ()

    @property
    def generates(self) -> bool:
        return self.model_type in ("causal", "vision")

    @property
    def capabilities(self) -> list[str]:
        return CAPABILITIES[self.model_type]

    @property
    def max_body_bytes(self) -> int:
        return (64 if self.model_type == "vision" else 16) * 1024 * 1024

    @property
    def connections(self) -> int:
        """Open at once: all whose requests may wait or run, and as many again as clients tend to keep."""
        return self.max_queue + self.max_batch + 1024


def parse(arguments: Sequence[str]) -> Options:
    """Options from a command line and `SOLAR_API_KEY`; exits with usage text on a mistake."""
    values = vars(_parser().parse_args(arguments))
    default_length = 4096 if values["model_type"] in ("causal", "vision") else 512
    values["max_length"] = values["max_length"] or default_length
    default_queue = 64 if values["model_type"] in ("causal", "vision") else 256
    values["max_queue"] = values["max_queue"] or default_queue
    labels = values["labels"]
    values["labels"] = _row(labels) if labels else None
    return Options(**values, keys=_row(os.environ.get("SOLAR_API_KEY", "")))


def _row(text: str) -> tuple[str, ...]:
    """The values of a comma separated row; one that holds a comma is in double quotes."""
    row = next(csv.reader([text], skipinitialspace=True), [])
    return tuple(value.strip() for value in row if value.strip())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hf_server",
        description="Serve one HuggingFace model over an OpenAI-compatible API. The port opens at once; "
        "/health answers 503 with the stage until the model has passed a warm-up call, then 200.",
        epilog="Keys that callers may send (Authorization: Bearer, or X-API-Key) come from SOLAR_API_KEY, "
        "comma separated; without it every caller is let in.",
    )
    add = parser.add_argument
    add("--model-id", required=True, help="local folder or hub id of the model")
    add("--model-type", required=True, choices=MODEL_TYPES, help="what the model does")
    add("--alias", required=True, help="name under which it is served")
    add("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    add("--port", type=_port, required=True, help="port to listen on")
    add("--device", default="auto", help="auto, cuda, cuda:N, mps or cpu (%(default)s)")
    add("--dtype", default="auto", choices=DTYPES, help="type of the weights (%(default)s)")
    add("--max-length", type=_positive, help="most tokens of a prompt and its answer (4096 or 512)")
    add("--trust-remote-code", action="store_true", help="run Python code that comes with the model")
    add("--use-flash-attention", action="store_true", help="use it where it is installed and works")
    add("--labels", help="comma separated label names, in the order of the model's classes")
    add("--normalize-embeddings", action="store_true", help="scale embeddings to length 1")
    add("--allow-image-urls", action="store_true", help="fetch images from public http(s) addresses")
    add("--max-batch", type=_positive, default=16, help="answers generated at once (%(default)s)")
    add("--max-queue", type=_positive, help="requests that may wait; one more gets a 429 (64 or 256)")
    add("--kv-tokens", type=_positive, help="tokens that the cache of running answers may hold (by memory)")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port")
    return value
