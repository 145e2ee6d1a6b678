"""Bodies and pictures that callers send to a HuggingFace server: answered, or refused with a reason."""

import base64
import io
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from hf_server.app import create_app
from hf_server.engine.start import start
from hf_server.errors import BadRequest
from hf_server.images import ImageLoader, decode
from hf_server.options import Options
from hf_server.service import Service
from tests.fuzz.strategies import any_json, mutated, texts
from tests.hf_models import save_causal, save_classifier, save_vision

pytest_plugins = ["tests.hf_fixtures"]

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP")


def drawn(kind: str) -> bytes:
    """A small picture that uses what its format has: a palette, a profile, a place of its origin."""
    buffer = io.BytesIO()
    picture = Image.new("P" if kind == "GIF" else "RGB", (5, 3), 1)
    exif = Image.Exif()
    exif[0x0112] = 6  # it lies on its side
    picture.save(buffer, kind, **({} if kind in ("GIF", "BMP") else {"exif": exif.tobytes()}))
    return buffer.getvalue()


PICTURES = [drawn(kind) for kind in FORMATS]
SAMPLING = {
    "model": "tiny",
    "max_tokens": 2,
    "n": 1,
    "temperature": 0.5,
    "top_p": 0.9,
    "seed": 7,
    "stop": ["x", "y"],
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "logit_bias": {"5": 1},
    "stream": True,
    "stream_options": {"include_usage": True},
}
CHAT = {
    **SAMPLING,
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "go on"},
    ],
    "max_completion_tokens": 2,
    "logprobs": True,
    "top_logprobs": 2,
    "chat_template_kwargs": {"enable_thinking": False},
    "response_format": {"type": "text"},
    "tools": [],
}
LOOK = {
    **SAMPLING,
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what is this"},
                {
                    "type": "image_url",
                    "image_url": {"url": "data:image/png;base64," + base64.b64encode(PICTURES[0]).decode()},
                },
            ],
        }
    ],
}
BODIES = {
    ("causal", "/v1/chat/completions"): CHAT,
    ("causal", "/v1/completions"): {**SAMPLING, "prompt": ["hello", "you"], "logprobs": 1, "echo": False},
    ("vision", "/v1/chat/completions"): LOOK,
    ("embedding", "/v1/embeddings"): {
        "model": "tiny",
        "input": ["hello", [5, 6]],
        "encoding_format": "base64",
        "dimensions": 3,
    },
    ("classification", "/v1/classify"): {"model": "tiny", "input": ["hello"], "return_all_scores": True},
}
SAVE = {"causal": save_causal, "vision": save_vision, "classification": save_classifier}
# What JSON can say and other readers can't take: numbers of thousands of digits, in keys too.
strange = any_json | st.sampled_from([10**400, -(10**400), {"9" * 5000: 1}, {"٣": 1}, "http://[", "data:,"])


@pytest.fixture(scope="module")
def clients(
    tmp_path_factory: pytest.TempPathFactory, minilm_folder: Path
) -> Iterator[dict[str, FlaskClient]]:
    """A client of one server for each kind of model; their answers are short."""
    services = []
    clients = {}
    for kind in ("causal", "vision", "embedding", "classification"):
        folder = SAVE[kind](tmp_path_factory.mktemp(kind)) if kind in SAVE else minilm_folder
        service = Service(Options(model_id=str(folder), model_type=kind, alias="tiny", max_length=64))
        service.use(start(service.options, service.metrics, lambda _: None))
        services.append(service)
        clients[kind] = create_app(service).test_client()
    yield clients
    for service in services:
        service.close()


def check(client: FlaskClient, path: str, body: bytes) -> None:
    answer = client.post(path, data=body)
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        error = answer.json["error"]
        assert error["message"]
        assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("call", BODIES, ids=" ".join)
@given(data=st.data())
def test_any_body_of_a_model_server(
    clients: dict[str, FlaskClient], call: tuple[str, str], data: st.DataObject
) -> None:
    kind, path = call
    check(clients[kind], path, json.dumps(data.draw(mutated(BODIES[call], strange) | strange)).encode())


@given(st.binary(max_size=100))
def test_any_bytes_as_a_body_of_a_model_server(clients: dict[str, FlaskClient], body: bytes) -> None:
    for kind, path in BODIES:
        check(clients[kind], path, body)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A picture with some bytes replaced, left out or added."""
    data = draw(st.sampled_from(PICTURES))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=4)) + data[at + draw(st.integers(0, 4)) :]
    return data


@given(damaged() | st.binary(max_size=100))
def test_any_picture(data: bytes) -> None:
    with suppress(BadRequest):
        assert decode(data, "image").mode == "RGB"


@given(
    st.builds(
        "".join,
        st.tuples(
            st.sampled_from(["http://", "https://", "HTTP://", "data:image/png;base64,", "data:", "//", ""]),
            texts | st.sampled_from(["[", "[::1", "a@b", "a:x", "a:99999", "%00", "\\", "AAAA"]),
            st.sampled_from(["", "/x", "?x", "#", ":80/", ",AAAA"]),
        ),
    )
)
def test_any_address_of_a_picture(address: str) -> None:
    asked: list[Any] = []
    loader = ImageLoader(allow_urls=True, resolve=lambda host: asked.append(host) or ["127.0.0.1"])
    with pytest.raises(BadRequest):
        loader.load(address, "image")
