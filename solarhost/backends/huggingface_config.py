"""The configs of HuggingFace instances, one for each kind of model."""

import re
from typing import Any

from marshmallow import ValidationError, fields, validate, validates_schema

from solarhost.backends.common_config import PATH_MAX, CommonConfig
from solarhost.backends.fields import Flag, Text, Whole

_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d{1,3})?")


def _check_device(text: str) -> None:
    if not _DEVICE.fullmatch(text):
        raise ValidationError("Must be auto, cuda, cuda:N, mps or cpu.")


def _about(text: str) -> dict[str, str]:
    return {"description": text}


def _max_length(default: int) -> Whole:
    return Whole(1, load_default=default, metadata=_about("Most tokens of a prompt and its answer."))


def _flash_attention() -> Flag:
    return Flag(
        load_default=True, metadata=_about("Use flash attention where it is installed and the device has it.")
    )


class HuggingFaceConfig(CommonConfig):
    """What all kinds share."""

    model_id = Text(PATH_MAX, metadata=_about("Local folder or hub id of the model."))
    device = fields.String(
        load_default="auto",
        validate=_check_device,
        metadata=_about("auto, cuda, cuda:N, mps or cpu; auto takes CUDA, then MPS, then the CPU."),
    )
    dtype = fields.String(
        load_default="auto",
        validate=validate.OneOf(("auto", "float16", "bfloat16", "float32")),
        metadata=_about("Type of the weights; auto is the checkpoint's own on a GPU, float32 on the CPU."),
    )
    trust_remote_code = Flag(
        load_default=False, metadata=_about("Run Python code that comes with the model.")
    )

    @validates_schema
    def _check_model(self, data: dict[str, Any], **_: Any) -> None:
        if "model_id" not in data and "model_source" not in data:
            words = "One of model_id and model_source is needed"
            hint = "; model is a field of the llamacpp backend." if "model" in data else "."
            raise ValidationError(words + hint, "model_id")


class CausalConfig(HuggingFaceConfig):
    backend_type = fields.Constant("huggingface_causal")
    max_length = _max_length(4096)
    use_flash_attention = _flash_attention()


class ClassificationConfig(HuggingFaceConfig):
    backend_type = fields.Constant("huggingface_classification")
    max_length = _max_length(512)
    labels = fields.List(
        Text(200),
        validate=validate.Length(0, 10_000),
        metadata=_about("Names of the classes, in the model's order; else the model's own."),
    )


class EmbeddingConfig(HuggingFaceConfig):
    backend_type = fields.Constant("huggingface_embedding")
    max_length = _max_length(512)
    normalize_embeddings = Flag(load_default=True, metadata=_about("Scale embeddings to length 1."))


class VisionConfig(HuggingFaceConfig):
    backend_type = fields.Constant("huggingface_vision")
    max_length = _max_length(4096)
    use_flash_attention = _flash_attention()
