"""`POST /v1/completions`."""

import time
from typing import Any

from flask import Blueprint, Response, request

from hf_server import body, requests
from hf_server.answering import Answering
from hf_server.body import Body
from hf_server.clients import Client
from hf_server.engines import GeneratingEngine
from hf_server.errors import BadRequest
from hf_server.generation import Decode, Delta, Generation, Outbox, Prompt
from hf_server.records import Record
from hf_server.service import Service

_DEFAULT_TOKENS = 16  # OpenAI's
_MAX_ALTERNATIVES = 5


def blueprint(service: Service) -> Blueprint:
    completions = Blueprint("completions", __name__)

    @completions.post("/v1/completions")
    def complete() -> Response:
        engine = service.generating_engine
        record = Record(metrics=service.metrics, endpoint="/v1/completions", prefix="cmpl")
        client = Client(request.environ.get("gunicorn.socket"))
        fields = Body.parse(request.get_data(cache=False))
        fields.model()
        fields.refuse("echo", False)
        fields.refuse("suffix", "")
        fields.refuse("best_of", 1, fields.get("n"))
        stream = requests.read_stream(fields)
        prompts = _prompts(fields, engine, service.options.max_queue)
        choices = requests.read_choices(fields, engine.max_batch)
        asked = requests.read_max_tokens(fields, "max_tokens") or _DEFAULT_TOKENS
        logprobs = fields.integer("logprobs", 0, _MAX_ALTERNATIVES)
        vocabulary = engine.prompts.vocabulary
        outbox: Outbox = Outbox()
        generations = [
            Generation(
                id=record.id,
                prompt=prompt,
                sampling=requests.read_sampling(
                    fields,
                    max_tokens=min(asked, engine.context - len(prompt.ids)),
                    logprobs=logprobs,
                    vocabulary=vocabulary,
                ),
                choices=choices,
                first_index=place * choices,
                streamed=stream.streamed,
                outbox=outbox,
                is_abandoned=client.is_gone,
            )
            for place, prompt in enumerate(prompts)
        ]
        engine.queue.submit(generations)
        record.begin(sum(len(p.ids) for p in prompts), inputs=len(prompts), streamed=stream.streamed)
        form = _TextFormat(record.id, service.options.alias, engine.decode, logprobs is not None)
        return Answering(generations, outbox, form, record, client).respond(stream)

    return completions


class _TextFormat:
    def __init__(self, answer_id: str, model: str, decode: Decode, with_logprobs: bool):
        self._id = answer_id
        self._model = model
        self._decode = decode
        self._with_logprobs = with_logprobs
        self._created = int(time.time())
        self._lengths: dict[int, int] = {}  # text so far of each answer, for the offsets of logprobs

    def opening(self, index: int) -> dict[str, Any] | None:  # noqa: ARG002
        return None

    def piece(self, delta: Delta) -> dict[str, Any]:
        logprobs = self._logprobs(delta) if self._with_logprobs else None
        return {
            "index": delta.index,
            "text": delta.text,
            "logprobs": logprobs,
            "finish_reason": delta.finish_reason,
        }

    def choice(self, delta: Delta) -> dict[str, Any]:
        return self.piece(delta)

    def envelope(self, choices: list[dict[str, Any]], *, streamed: bool) -> dict[str, Any]:  # noqa: ARG002
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    def _logprobs(self, delta: Delta) -> dict[str, Any]:
        index, logprobs = delta.index, delta.logprobs
        texts = [self._decode([one.token]) for one in logprobs]
        offsets = []
        for text in texts:
            offsets.append(self._lengths.get(index, 0))
            self._lengths[index] = offsets[-1] + len(text)
        return {
            "tokens": texts,
            "token_logprobs": [one.logprob for one in logprobs],
            "top_logprobs": [
                {self._decode([token]): logprob for token, logprob in one.alternatives} for one in logprobs
            ],
            "text_offset": offsets,
        }


def _prompts(fields: Body, engine: GeneratingEngine, limit: int) -> list[Prompt]:
    """`prompt`: a text, a list of texts, token ids, or a list of lists of token ids."""
    value = fields.required("prompt")
    if isinstance(value, str) or body.is_token_list(value):
        value = [value]
    if not isinstance(value, list) or not 1 <= len(value) <= limit:
        raise BadRequest(f"'prompt' must be a text, token ids, or a list of 1 to {limit} of them", "prompt")
    prompts = []
    for one in value:
        if isinstance(one, list):
            prompts.append(engine.prompts.ids(body.token_ids(one, engine.prompts.vocabulary, "prompt")))
        else:
            prompts.append(engine.prompts.text(body.text(one, "prompt")))
    return prompts
