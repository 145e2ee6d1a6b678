"""Loading a checkpoint: device, number type, weights; what is wrong is said in one sentence."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub import constants
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from safetensors import SafetensorError
from transformers import AutoConfig
from transformers.utils import is_flash_attn_2_available
from transformers.utils import logging as transformers_logging

from hf_server import log
from hf_server.engine import hub
from hf_server.errors import StartFailed
from hf_server.options import Options

T = TypeVar("T")

LoadErrors = (OSError, ValueError, RuntimeError, KeyError, AttributeError, ImportError, SafetensorError)


def quiet() -> None:
    """No progress bars in the log, and warnings only."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_warning()


def choose_device(wanted: str) -> torch.device:
    """The device for `auto`, `cuda`, `cuda:N`, `mps` or `cpu`.

    Raises:
        StartFailed: it isn't there.
    """
    if wanted == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda:0")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise StartFailed(f"'{wanted}' is no device; use auto, cuda, cuda:N, mps or cpu") from error
    hint = "use device 'auto' or 'cpu', or install a build of torch for this hardware"
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise StartFailed(
                f"device '{wanted}' was asked for, but torch {torch.__version__} sees {count} CUDA devices "
                f"here; {hint}"
            )
    elif device.type == "mps" and not torch.backends.mps.is_available():
        raise StartFailed(f"device 'mps' was asked for, but torch {torch.__version__} sees none; {hint}")
    elif device.type not in ("cuda", "mps", "cpu"):
        raise StartFailed(f"'{wanted}' is no device; use auto, cuda, cuda:N, mps or cpu")
    return device


def load_config(options: Options) -> Any:
    """The checkpoint's configuration. Raises StartFailed."""
    return explained(lambda: AutoConfig.from_pretrained(options.model_id, **source(options)), options)


def load_model(
    auto_class: Any, config: Any, options: Options, may_miss: Callable[[str], bool] = lambda _: False
) -> Any:
    """The model on its device, in eval mode.

    Args:
        may_miss: tells of a weight's name whether the checkpoint may lack it.

    Raises:
        StartFailed: it can't be loaded, or the checkpoint lacks weights, which would be random numbers.
    """
    device = choose_device(options.device)
    attention = _attention(options, device)
    arguments: dict[str, Any] = {
        "config": config,
        "dtype": _dtype(options.dtype, config, device),
        "output_loading_info": True,
        **source(options),
        **({"attn_implementation": attention} if attention else {}),
    }
    model, info = explained(lambda: auto_class.from_pretrained(options.model_id, **arguments), options)
    missing = sorted(name for name in info["missing_keys"] if not may_miss(name))
    if missing:
        raise StartFailed(
            f"the checkpoint {options.model_id} lacks {len(missing)} weights of a {type(model).__name__}, "
            f"{_some(missing)}: it is incomplete, or not a {options.model_type} model"
        )
    return explained(lambda: model.to(device), options).eval()


def find(options: Options) -> None:
    """Find out where the checkpoint can come from.

    Raises:
        StartFailed: there is no such folder, and no hub can have a model of that name.
    """
    if not Path(options.model_id).is_dir():
        explained(lambda: validate_repo_id(options.model_id), options)
        hub.go_offline_unless_reachable()


def source(options: Options) -> dict[str, Any]:
    """Where to load from: a folder is read without asking any hub."""
    return {
        "trust_remote_code": options.trust_remote_code,
        "local_files_only": Path(options.model_id).is_dir(),
    }


def explained(load: Callable[[], T], options: Options) -> T:
    """The result of `load`; its errors become StartFailed with a cause and a remedy."""
    try:
        return load()
    except torch.OutOfMemoryError as error:
        raise StartFailed(
            f"the device has no room for {options.model_id}: {error}; use a smaller model or number type, "
            "or free the device"
        ) from error
    except LoadErrors as error:
        raise StartFailed(_explain(error, options)) from error


def _explain(error: BaseException, options: Options) -> str:
    text, model = str(error), options.model_id
    if isinstance(error, FileNotFoundError):
        return f"a file of the checkpoint is missing: {text}; download the model again"
    if isinstance(error, SafetensorError):
        return f"a weight file in {model} is damaged or incomplete: {text}; download the model again"
    if "custom code" in text:
        return (
            f"{model} brings its own Python code, which is run only with trust_remote_code: true; "
            "set it if you trust the source"
        )
    if "is not a valid JSON file" in text:
        return f"the checkpoint's configuration is broken: {text}"
    if "does not recognize this architecture" in text:
        first = text.splitlines()[0]
        return f"{first} Install a newer transformers, or check config.json."
    if "Should have a `model_type` key" in text or "Unrecognized model" in text:
        return f"config.json of {model} names no model_type; the folder does not hold a transformers model"
    if "Unrecognized configuration class" in text:
        return f"{text.splitlines()[0]} {model} is not a {options.model_type} model."
    if "no file named" in text:
        return f"the checkpoint {model} has no weight file: {text}"
    if "Repo id must be" in text or "is not a local folder" in text or "Repository Not Found" in text:
        return f"there is no model '{model}': it is neither a folder on this machine nor a public hub id"
    if "connect to" in text or "offline" in text.lower() or "find them in the cached files" in text:
        return (
            f"'{model}' is not a folder here, not in the local cache, and the hub {constants.ENDPOINT} "
            "can't be reached (or HF_HUB_OFFLINE is set); pull the model first or give the path of its "
            "folder, or check the network"
        )
    if "gated repo" in text or "401 Client Error" in text or "403 Client Error" in text:
        return f"the hub refuses access to '{model}': set HF_TOKEN to a token that may read it"
    if "size mismatch" in text or "ignore_mismatched_sizes" in text:
        return f"the weights in {model} do not have the shapes that its config.json describes"
    return f"{model} can't be loaded: {type(error).__name__}: {' '.join(text.split())[:500]}"


def _dtype(wanted: str, config: Any, device: torch.device) -> torch.dtype:
    if wanted != "auto":
        return getattr(torch, wanted)  # type: ignore[no-any-return]
    if device.type == "cpu":
        return torch.float32  # what CPUs compute fastest
    stored = getattr(config.get_text_config(decoder=True), "dtype", None) or config.dtype
    return torch.float16 if stored in (None, torch.float32) else stored


def _attention(options: Options, device: torch.device) -> str | None:
    """The attention to ask transformers for; None is its own choice, SDPA where the model has it."""
    if not options.use_flash_attention:
        return None
    if device.type == "cuda" and is_flash_attn_2_available():
        return "flash_attention_2"
    log.event("attention", used="sdpa", reason=f"flash attention is not available on {device.type}")
    return None


def _some(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:3])
    return shown if len(names) <= 3 else f"{shown}, …"
