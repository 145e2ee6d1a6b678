"""From messages or text to the token ids of a prompt. Safe from any thread."""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from hf_server.errors import BadRequest, ContextLengthExceeded
from hf_server.generation import Prompt
from hf_server.messages import Image, Message


class TextPrompts:
    """Prompts for a model that reads text.

    Args:
        tokenizer: a tokenizer of transformers.
        context: most tokens of a prompt and its answer; one of them has to be left for the answer.
    """

    def __init__(self, tokenizer: Any, context: int):
        self._tokenizer = tokenizer
        self._context = context
        self.vocabulary = len(tokenizer)

    def chat(self, messages: Sequence[Message], template_arguments: Mapping[str, Any]) -> Prompt:
        """Raises BadRequest, ContextLengthExceeded."""
        if self._tokenizer.chat_template:
            conversation = [{"role": m.role, "content": m.text} for m in messages]
            text = rendered(self._tokenizer, conversation, template_arguments)
            return self._prompt(self._encode(text, special=False), "messages")
        return self._prompt(self._encode(plain(messages), special=True), "messages")

    def text(self, text: str) -> Prompt:
        """Raises BadRequest, ContextLengthExceeded."""
        return self._prompt(self._encode(text, special=True), "prompt")

    def ids(self, ids: list[int]) -> Prompt:
        """Raises BadRequest, ContextLengthExceeded."""
        return self._prompt(ids, "prompt")

    def _encode(self, text: str, *, special: bool) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=special)["input_ids"]
        return ids

    def _prompt(self, ids: list[int], param: str) -> Prompt:
        return Prompt(checked(ids, self._context, param))


class VisionPrompts:
    """Prompts for a model that reads text and images.

    Args:
        processor: a processor of transformers, which holds tokenizer and image processor.
    """

    def __init__(self, processor: Any, context: int):
        self._processor = processor
        self._context = context
        self.vocabulary = len(processor.tokenizer)

    def chat(self, messages: Sequence[Message], template_arguments: Mapping[str, Any]) -> Prompt:
        """Raises BadRequest, ContextLengthExceeded."""
        if self._processor.chat_template or self._processor.tokenizer.chat_template:
            conversation = [{"role": m.role, "content": [_part(p) for p in m.parts]} for m in messages]
            text, special = rendered(self._processor, conversation, template_arguments), False
        else:
            marker = getattr(self._processor, "image_token", "<image>")
            text, special = plain(messages, marker), True
        images = [part.picture for message in messages for part in message.images]
        try:
            inputs = self._processor(
                text=[text],
                images=images or None,
                add_special_tokens=special,
                return_tensors="pt",
            )
        except (ValueError, RuntimeError, IndexError) as error:
            raise BadRequest(f"the images don't fit this model: {error}", "messages") from error
        ids = checked(inputs.pop("input_ids")[0].tolist(), self._context, "messages")
        inputs.pop("attention_mask", None)
        return Prompt(ids, dict(inputs) if images else {})

    def text(self, text: str) -> Prompt:
        """Raises BadRequest, ContextLengthExceeded."""
        ids = self._processor.tokenizer(text, add_special_tokens=True)["input_ids"]
        return Prompt(checked(ids, self._context, "prompt"))

    def ids(self, ids: list[int]) -> Prompt:
        """Raises BadRequest, ContextLengthExceeded."""
        return Prompt(checked(ids, self._context, "prompt"))


def rendered(renderer: Any, conversation: list[dict[str, Any]], arguments: Mapping[str, Any]) -> str:
    """The chat template's text for a conversation, up to where the answer begins."""
    try:
        text: str = renderer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=True, **arguments
        )
    except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        raise BadRequest(f"the model's chat template refuses these messages: {error}", "messages") from error
    return text


def plain(messages: Sequence[Message], image_marker: str = "") -> str:
    """For a model without a chat template: each message with its role in front, then the assistant's turn."""
    lines = []
    for message in messages:
        texts = [image_marker if isinstance(part, Image) else part for part in message.parts]
        lines.append(f"{message.role}: " + "\n".join(texts))
    return "\n".join([*lines, "assistant:"])


def checked(ids: list[int], context: int, param: str) -> list[int]:
    """`ids` if there are any, and room for an answer is left."""
    if not ids:
        raise BadRequest(f"'{param}' has no tokens", param)
    if len(ids) >= context:
        raise ContextLengthExceeded(len(ids), context - 1, param)
    return ids


def _part(part: str | Image) -> dict[str, Any]:
    return {"type": "image"} if isinstance(part, Image) else {"type": "text", "text": part}
