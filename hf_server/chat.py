"""`POST /v1/chat/completions`."""

import time
from typing import Any

from flask import Blueprint, Response, request

from hf_server import requests
from hf_server.answering import Answering
from hf_server.body import Body
from hf_server.clients import Client
from hf_server.errors import BadRequest
from hf_server.generation import Decode, Delta, Generation, Outbox, TokenLogprob
from hf_server.images import ImageLoader
from hf_server.messages import read_messages
from hf_server.records import Record
from hf_server.service import Service

_MAX_ALTERNATIVES = 20


def blueprint(service: Service) -> Blueprint:
    chat = Blueprint("chat", __name__)
    reads_images = service.options.model_type == "vision"
    images = ImageLoader(allow_urls=service.options.allow_image_urls) if reads_images else None

    @chat.post("/v1/chat/completions")
    def complete_chat() -> Response:
        engine = service.generating_engine
        record = Record(metrics=service.metrics, endpoint="/v1/chat/completions", prefix="chatcmpl")
        client = Client(request.environ.get("gunicorn.socket"))
        fields = Body.parse(request.get_data(cache=False))
        fields.model()
        _refuse(fields)
        stream = requests.read_stream(fields)
        messages = read_messages(fields, images)
        prompt = engine.prompts.chat(messages, _template_arguments(fields))
        room = engine.context - len(prompt.ids)
        asked = requests.read_max_tokens(fields, "max_completion_tokens", "max_tokens")
        sampling = requests.read_sampling(
            fields,
            max_tokens=min(asked or room, room),
            logprobs=_logprobs(fields),
            vocabulary=engine.prompts.vocabulary,
        )
        outbox: Outbox = Outbox()
        generation = Generation(
            id=record.id,
            prompt=prompt,
            sampling=sampling,
            choices=requests.read_choices(fields, engine.max_batch),
            first_index=0,
            streamed=stream.streamed,
            outbox=outbox,
            is_abandoned=client.is_gone,
        )
        engine.queue.submit([generation])
        record.begin(len(prompt.ids), streamed=stream.streamed)
        form = _ChatFormat(record.id, service.options.alias, engine.decode, sampling.logprobs is not None)
        return Answering([generation], outbox, form, record, client).respond(stream)

    return chat


class _ChatFormat:
    def __init__(self, answer_id: str, model: str, decode: Decode, with_logprobs: bool):
        self._id = answer_id
        self._model = model
        self._decode = decode
        self._with_logprobs = with_logprobs
        self._created = int(time.time())

    def opening(self, index: int) -> dict[str, Any] | None:
        return self._shown({"delta": {"role": "assistant", "content": ""}}, Delta(index, ""))

    def piece(self, delta: Delta) -> dict[str, Any]:
        content = {"content": delta.text} if delta.text else {}
        return self._shown({"delta": content}, delta)

    def choice(self, delta: Delta) -> dict[str, Any]:
        return self._shown({"message": {"role": "assistant", "content": delta.text}}, delta)

    def envelope(self, choices: list[dict[str, Any]], *, streamed: bool) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "chat.completion.chunk" if streamed else "chat.completion",
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    def _shown(self, content: dict[str, Any], delta: Delta) -> dict[str, Any]:
        logprobs = (
            {"content": [self._logprob(one) for one in delta.logprobs]} if self._with_logprobs else None
        )
        return {"index": delta.index, **content, "logprobs": logprobs, "finish_reason": delta.finish_reason}

    def _logprob(self, one: TokenLogprob) -> dict[str, Any]:
        alternatives = [self._token(token, logprob) for token, logprob in one.alternatives]
        return self._token(one.token, one.logprob) | {"top_logprobs": alternatives}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._decode([token])
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _refuse(fields: Body) -> None:
    """What a caller would miss if it were ignored."""
    fields.refuse("tools", [])
    fields.refuse("functions", [])
    fields.refuse("tool_choice", "none", "auto")
    fields.refuse("response_format", {"type": "text"})
    fields.refuse("modalities", ["text"])
    fields.refuse("audio")


def _logprobs(fields: Body) -> int | None:
    alternatives = fields.integer("top_logprobs", 0, _MAX_ALTERNATIVES)
    if not fields.flag("logprobs"):
        if alternatives:
            raise BadRequest("'top_logprobs' needs 'logprobs': true", "top_logprobs")
        return None
    return alternatives or 0


def _template_arguments(fields: Body) -> dict[str, Any]:
    value = fields.get("chat_template_kwargs")
    if value is None:
        return {}
    reserved = {"tokenize", "add_generation_prompt", "chat_template", "conversation", "return_dict"}
    if not isinstance(value, dict) or reserved & value.keys():
        raise BadRequest(
            "'chat_template_kwargs' must be an object of template values", "chat_template_kwargs"
        )
    return value
