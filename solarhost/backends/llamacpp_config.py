"""The config of a llama.cpp instance: its fields, defaults and rules."""

import json
import math
import re
from typing import Any

from marshmallow import ValidationError, fields, validate, validates_schema

from solarhost.backends.common_config import PATH_MAX, CommonConfig
from solarhost.backends.fields import Argument, Flag, Number, Text, Whole

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

# Every spelling that llama-server has for what the host decides, and why the host does.
_OWNED_FLAGS = {
    "address": ("--host", "--port", "--reuse-port", "--api-prefix", "--ssl-key-file", "--ssl-cert-file"),
    "keys": ("--api-key", "--api-key-file", "-hft", "--hf-token"),
    "model": (
        *("-m", "--model", "-mu", "--model-url", "-dr", "--docker-repo", "-hf", "-hfr", "--hf-repo"),
        *("-hff", "--hf-file", "--models-dir", "--models-preset"),
    ),
    "alias": ("-a", "--alias"),
    "monitoring": ("--metrics", "--slots", "--no-slots"),
}
_OWNER = {flag: what for what, flags in _OWNED_FLAGS.items() for flag in flags}
_PRESET = re.compile(r"--(embd|fim|gpt-oss|vision)-.+-(default|spec)")  # each sets a model and a port
_DEVICES = re.compile(r"[A-Za-z0-9_.:-]+(,[A-Za-z0-9_.:-]+)*")


def owner_of_flag(argument: str) -> str | None:
    """What the host decides by this flag ("model", "keys", …), or None if the flag is free.

    llama-server reads `_` as `-` in long flags; `--flag=value` is not its spelling, but is meant
    as that flag.
    """
    flag = argument.split("=", 1)[0]
    if flag.startswith("--"):
        flag = flag.replace("_", "-")
        if _PRESET.fullmatch(flag):
            return "model"
    return _OWNER.get(flag)


def _check_free(argument: str) -> None:
    if owner := owner_of_flag(argument):
        raise ValidationError(f"{argument.split('=', 1)[0]} is set by the host ({owner}).")


class _CommaList(fields.String):
    """Comma separated text, kept without the blanks around its items."""

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> str:
        text = super()._deserialize(value, *args, **kwargs)
        return ",".join(item.strip() for item in text.split(","))


def _check_devices(text: str) -> None:
    if not _DEVICES.fullmatch(text):
        raise ValidationError("Not a comma separated list of device names, such as CUDA0,CUDA1.")


def _check_split(text: str) -> None:
    try:
        shares = [float(item) for item in text.split(",")]
    except ValueError as error:
        raise ValidationError("Not a comma separated list of numbers, such as 3,1.") from error
    if not all(math.isfinite(share) and share >= 0 for share in shares):
        raise ValidationError("The shares must be finite and not negative.")


class _TemplateArguments(fields.Field[str]):
    """A JSON object, given as such or as text; kept as compact text.

    Forms send every value as text, so "true" and "false" inside become booleans.
    """

    def _deserialize(self, value: Any, *_args: Any, **_kwargs: Any) -> str:
        if isinstance(value, str):
            try:
                value = json.loads(value, parse_constant=_refuse_constant)
            except (ValueError, RecursionError) as error:
                raise ValidationError(f"Not valid JSON: {error}.") from error
        if not isinstance(value, dict):
            raise ValidationError("Not a JSON object.")
        try:
            text = json.dumps(_with_booleans(value), separators=(",", ":"), allow_nan=False)
        except (ValueError, RecursionError) as error:
            raise ValidationError(f"Not valid JSON: {error}.") from error
        if len(text) > _TEMPLATE_ARGUMENTS_MAX:
            raise ValidationError(f"Longer than {_TEMPLATE_ARGUMENTS_MAX} characters.")
        return text


_TEMPLATE_ARGUMENTS_MAX = 100_000


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _with_booleans(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_booleans(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_booleans(item) for item in value]
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def _one_of(*choices: str, **kwargs: Any) -> fields.String:
    return fields.String(validate=validate.OneOf(choices), **kwargs)


def _about(text: str) -> dict[str, str]:
    return {"description": text}


class LlamaCppConfig(CommonConfig):
    """Each field stands for the llama-server flag of the same name, unless it says otherwise."""

    backend_type = _one_of("llamacpp", load_default="llamacpp")
    model = Text(PATH_MAX, metadata=_about("Path of a GGUF file, or of a folder that holds some."))
    model_file = Text(
        PATH_MAX, metadata=_about("Path or pattern of the GGUF inside the model folder; else the largest.")
    )
    mmproj = Text(PATH_MAX, metadata=_about("Path or pattern of the multimodal projector."))
    mmproj_offload = Flag(load_default=True, metadata=_about("Put the projector on the GPU."))
    model_type = _one_of("llm", "embedding", "reranker", load_default="llm")
    pooling = _one_of(
        "none", "mean", "cls", "last", "rank", metadata=_about("Only used by `model_type: embedding`.")
    )

    threads = Whole(-1, 4096, load_default=1, metadata=_about("CPU threads; -1 for all cores."))
    n_gpu_layers = Whole(-2, load_default=999, metadata=_about("Layers on the GPU."))
    devices = _CommaList(
        validate=[validate.Length(1, 1000), _check_devices],
        metadata=_about("Devices to use, as `llama-server --list-devices` names them."),
    )
    split_mode = _one_of("none", "layer", "row", "tensor")
    tensor_split = _CommaList(
        validate=[validate.Length(1, 1000), _check_split],
        metadata=_about("Share of the model on each device, such as 3,1."),
    )
    main_gpu = Whole(0)
    ot = Text(10_000, metadata=_about("`--override-tensor`: which tensors lie where."))

    ctx_size = Whole(0, load_default=131072, metadata=_about("Context in tokens; 0 for the model's own."))
    cache_type_k = _one_of(*CACHE_TYPES)
    cache_type_v = _one_of(*CACHE_TYPES)
    rope_scaling = _one_of("none", "linear", "yarn")
    rope_scale = Number(0, above=True)
    yarn_orig_ctx = Whole(0)

    temp = Number(0, 2, load_default=1.0)
    top_p = Number(0, 1, load_default=1.0)
    top_k = Whole(0, load_default=0)
    min_p = Number(0, 1, load_default=0.0)

    chat_template_file = Text(PATH_MAX)
    chat_template_kwargs = _TemplateArguments(
        metadata={
            **_about("JSON object for the chat template, as an object or as text; kept as compact text."),
            "type": ["string", "object"],
        }
    )
    reasoning = _one_of("on", "off", "auto")
    reasoning_budget = Whole(-1, metadata=_about("Tokens for thinking; -1 for no limit."))
    special = Flag(load_default=False, metadata=_about("Print special tokens."))

    spec_type = _one_of("draft-mtp", "draft-dspark", metadata=_about("Only used by `model_type: llm`."))
    spec_draft_model = Text(PATH_MAX, metadata=_about("Path or pattern of the draft model."))
    spec_draft_n_max = Whole(1)
    spec_draft_conf_min = Number(0, 1)

    extra_args = fields.List(
        Argument(100_000, check=_check_free),
        validate=validate.Length(0, 500),
        metadata=_about("Further arguments of llama-server, put last; not those that the host sets."),
    )

    @validates_schema
    def _check_model(self, data: dict[str, Any], **_: Any) -> None:
        if "model" not in data and "model_source" not in data:
            raise ValidationError("One of model and model_source is needed.", "model")

    @validates_schema
    def _check_speculation(self, data: dict[str, Any], **_: Any) -> None:
        kind = data.get("spec_type")
        if kind is None:
            for name in ("spec_draft_model", "spec_draft_n_max", "spec_draft_conf_min"):
                if name in data:
                    raise ValidationError("Needs spec_type.", name)
        if kind == "draft-dspark" and "spec_draft_model" not in data:
            raise ValidationError("spec_type draft-dspark needs it.", "spec_draft_model")
