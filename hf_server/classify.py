"""`POST /v1/classify`."""

from typing import Any

from flask import Blueprint, Response, request

from hf_server import body, render
from hf_server.body import Body
from hf_server.clients import Client
from hf_server.embeddings import MAX_INPUTS
from hf_server.engines import VectorEngine
from hf_server.errors import BadRequest
from hf_server.records import Record
from hf_server.service import Service


def blueprint(service: Service) -> Blueprint:
    classify = Blueprint("classify", __name__)

    @classify.post("/v1/classify")
    def classify_texts() -> Response:
        engine = service.vector_engine
        record = Record(metrics=service.metrics, endpoint="/v1/classify", prefix="classify")
        client = Client(request.environ.get("gunicorn.socket"))
        fields = Body.parse(request.get_data(cache=False))
        fields.model()
        return_all = fields.flag("return_all_scores")
        texts = _texts(fields, engine)
        with record.encoding(texts) as tokens:
            scores = engine.vectors(texts, client.is_gone)
        return render.answer(
            {
                "id": record.id,
                "object": "classification",
                "model": service.options.alias,
                "choices": [
                    _choice(place, row, engine.labels, return_all)
                    for place, row in enumerate(scores.tolist())
                ],
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        )

    return classify


def _texts(fields: Body, engine: VectorEngine) -> list[list[int]]:
    value = fields.required("input")
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_INPUTS:
        raise BadRequest(f"'input' must be a text or a list of 1 to {MAX_INPUTS} texts", "input")
    return [engine.tokens(body.text(one, "input"), "input") for one in value]


def _choice(place: int, scores: list[float], labels: tuple[str, ...], return_all: bool) -> dict[str, Any]:
    best = max(range(len(scores)), key=scores.__getitem__)
    choice = {"index": place, "label": labels[best], "score": scores[best]}
    if return_all:
        named = [{"label": label, "score": score} for label, score in zip(labels, scores, strict=True)]
        choice["all_scores"] = named
    return choice
