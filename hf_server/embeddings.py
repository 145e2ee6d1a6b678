"""`POST /v1/embeddings`."""

import base64
from typing import Any

import numpy as np
from flask import Blueprint, Response, request

from hf_server import body, render
from hf_server.body import Body
from hf_server.clients import Client
from hf_server.engines import VectorEngine
from hf_server.errors import BadRequest
from hf_server.records import Record
from hf_server.service import Service
from hf_server.texts import Vectors

MAX_INPUTS = 2048  # OpenAI's


def blueprint(service: Service) -> Blueprint:
    embeddings = Blueprint("embeddings", __name__)

    @embeddings.post("/v1/embeddings")
    def embed() -> Response:
        engine = service.vector_engine
        record = Record(metrics=service.metrics, endpoint="/v1/embeddings", prefix="embd")
        client = Client(request.environ.get("gunicorn.socket"))
        fields = Body.parse(request.get_data(cache=False))
        fields.model()
        form = fields.get("encoding_format") or "float"
        if form not in ("float", "base64"):
            raise BadRequest("'encoding_format' must be 'float' or 'base64'", "encoding_format")
        dimensions = fields.integer("dimensions", 1, 1 << 20)
        texts = _texts(fields, engine)
        with record.encoding(texts) as tokens:
            vectors = engine.vectors(texts, client.is_gone)
            vectors = _shaped(vectors, dimensions, normalize=service.options.normalize_embeddings)
        return render.answer(
            {
                "object": "list",
                "data": [
                    {"object": "embedding", "index": place, "embedding": _encoded(vector, form)}
                    for place, vector in enumerate(vectors)
                ],
                "model": service.options.alias,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        )

    return embeddings


def _texts(fields: Body, engine: VectorEngine) -> list[list[int]]:
    """`input`: a text, a list of texts, token ids, or a list of lists of token ids."""
    value = fields.required("input")
    if isinstance(value, str) or body.is_token_list(value):
        value = [value]
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_INPUTS:
        kinds = f"a text, token ids, or a list of 1 to {MAX_INPUTS} of them"
        raise BadRequest(f"'input' must be {kinds}", "input")
    return [_tokens(one, engine) for one in value]


def _tokens(value: Any, engine: VectorEngine) -> list[int]:
    if isinstance(value, list):
        return engine.given_tokens(value, "input")
    return engine.tokens(body.text(value, "input"), "input")


def _shaped(vectors: Vectors, dimensions: int | None, *, normalize: bool) -> Vectors:
    """Cut to `dimensions`, then scaled to length 1 where the server is to."""
    if dimensions is not None:
        if dimensions > vectors.shape[1]:
            raise BadRequest(f"this model has {vectors.shape[1]} dimensions, not {dimensions}", "dimensions")
        vectors = vectors[:, :dimensions]
    if normalize:
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    return vectors


def _encoded(vector: Vectors, form: str) -> Any:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode() if form == "base64" else vector
