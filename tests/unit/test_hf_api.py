"""hf_server's API as OpenAI's own Python client and solar-control's gateway see it."""

import base64
import io
import json
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
import requests
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from tests.hf_models import KEY, save_causal

pytest_plugins = ["tests.hf_fixtures"]

HELLO = [{"role": "user", "content": "hello"}]


def chat(served, **fields):
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 12, "temperature": 0, **fields}
    return served.client.chat.completions.create(**body)


def data_uri(picture: Image.Image, kind: str = "PNG") -> str:
    buffer = io.BytesIO()
    picture.save(buffer, kind)
    return as_uri(buffer.getvalue())


def as_uri(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def about_image(uri: str) -> list[dict]:
    parts = [{"type": "text", "text": "what is this"}, {"type": "image_url", "image_url": {"url": uri}}]
    return [{"role": "user", "content": parts}]


def test_chat(causal):
    answer = chat(causal)
    assert answer.object == "chat.completion"
    assert answer.model == "tiny"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    assert answer.usage.prompt_tokens_details.cached_tokens is not None


def test_streamed_chat_is_the_same_text_with_usage_at_its_end(causal):
    whole = chat(causal)
    chunks = list(chat(causal, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 12
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_a_stream_read_line_by_line_ends_with_done(causal):
    """As the gateway reads it: lines up to each blank one are an event."""
    body = {"messages": HELLO, "max_tokens": 5, "stream": True, "stream_options": {"include_usage": True}}
    answer = requests.post(
        f"{causal.url}/v1/chat/completions",
        json=body,
        headers={"Authorization": f"Bearer {KEY}"},
        stream=True,
        timeout=60,
    )
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    lines = list(answer.iter_lines(decode_unicode=True))
    assert all(line.startswith("data: ") for line in lines[::2])
    assert all(line == "" for line in lines[1::2])
    assert lines[-2] == "data: [DONE]"
    assert json.loads(lines[-4][6:])["usage"]["completion_tokens"] == 5
    assert all("usage" in json.loads(line[6:]) for line in lines[:-2:2])


def test_completions_of_several_prompts(causal):
    answer = causal.client.completions.create(
        model="tiny", prompt=["hello", "the fox"], n=2, max_tokens=4, temperature=0, logprobs=1
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text == answer.choices[1].text
    assert answer.usage.completion_tokens == 16
    alone = causal.client.completions.create(model="tiny", prompt="the fox", max_tokens=4, temperature=0)
    assert answer.choices[2].text == alone.choices[0].text
    assert len(answer.choices[0].logprobs.token_logprobs) == 4


def test_a_prompt_of_token_ids_is_that_of_its_text(causal):
    ids = causal.engine.prompts.text("hello world").ids
    ask = causal.client.completions.create
    by_ids = ask(model="tiny", prompt=ids, max_tokens=6, temperature=0)
    by_text = ask(model="tiny", prompt="hello world", max_tokens=6, temperature=0)
    assert by_ids.choices[0].text == by_text.choices[0].text


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_is_cut_out(causal, stream):
    whole = chat(causal, max_tokens=30).choices[0].message.content
    stop = whole[8:11]
    answer = chat(causal, max_tokens=30, stop=["never there", stop], stream=stream)
    if stream:
        chunks = list(answer)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        text, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
    assert text == whole[: whole.index(stop)]
    assert reason == "stop"


def test_logprobs_of_a_chat(causal):
    answer = chat(causal, max_tokens=3, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert len(content) == 3
    assert content[0].logprob == content[0].top_logprobs[0].logprob
    assert answer.choices[0].logprobs.content[0].bytes


def test_models_and_health(causal, vision, embedding, classifier):
    assert [model.id for model in causal.client.models.list()] == ["tiny"]
    capabilities = {
        "causal": ["completion"],
        "vision": ["completion", "multimodal"],
        "embedding": ["embedding"],
        "classification": ["classification"],
    }
    for served in (causal, vision, embedding, classifier):
        health = requests.get(f"{served.url}/health", timeout=60).json()
        assert health["status"] == "ok"
        assert health["device"] == "cpu"
        models = requests.get(f"{served.url}/v1/models", headers={"X-API-Key": KEY}, timeout=60).json()
        assert models["data"][0]["capabilities"] == capabilities[health["model_type"]]
        assert models["models"][0]["details"]["format"] == "huggingface"


def test_metrics_count_to_the_token(causal):
    def counted(name: str) -> float:
        text = requests.get(f"{causal.url}/metrics", headers={"X-API-Key": KEY}, timeout=60).text
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))

    names = ("prompt", "generated", "cached")
    before = {name: counted(f"hf_server_{name}_tokens_total") for name in names}
    usage = chat(causal, max_tokens=9, messages=[{"role": "user", "content": "count me " * 9}]).usage
    assert counted("hf_server_prompt_tokens_total") - before["prompt"] == usage.prompt_tokens
    assert counted("hf_server_generated_tokens_total") - before["generated"] == usage.completion_tokens
    cached = usage.prompt_tokens_details.cached_tokens
    assert counted("hf_server_cached_tokens_total") - before["cached"] == cached


def test_a_wrong_key_is_an_authentication_error(causal):
    client = openai.OpenAI(base_url=f"{causal.url}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        client.models.list()
    assert requests.get(f"{causal.url}/v1/models", timeout=60).status_code == 401
    assert requests.get(f"{causal.url}/health", timeout=60).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "sound"}]}]}, "messages[0].content[0].type"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": True}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"seed": "x"}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 99}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": 3}, "stream_options"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
        ({"model": 7}, "model"),
    ],
)
def test_a_bad_field_is_a_400_that_names_it(causal, fields, param):
    body = json.dumps({"messages": HELLO, "max_tokens": 2, **fields})
    answer = requests.post(
        f"{causal.url}/v1/chat/completions", data=body, headers={"X-API-Key": KEY}, timeout=60
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"7", b"\xff", b"[" * 100_000, b'{"a": ' * 5000])
def test_a_body_that_is_no_object_is_a_400(causal, body):
    answer = requests.post(
        f"{causal.url}/v1/chat/completions", data=body, headers={"X-API-Key": KEY}, timeout=60
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_prompt_over_the_context_is_refused_whole(causal):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(causal, messages=[{"role": "user", "content": "hello " * 600}])
    assert caught.value.code == "context_length_exceeded"


def test_an_answer_ends_with_the_context(causal):
    messages = [{"role": "user", "content": "x" * 480}]
    answer = chat(causal, messages=messages, max_tokens=1000)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.total_tokens == causal.engine.context


def test_unknown_paths_and_methods_have_the_same_shape(causal):
    headers = {"X-API-Key": KEY}
    assert (
        requests.get(f"{causal.url}/nope", headers=headers, timeout=60).json()["error"]["code"]
        == "unknown_url"
    )
    answer = requests.get(f"{causal.url}/v1/completions", headers=headers, timeout=60)
    assert answer.status_code == 405
    assert answer.json()["error"]["message"]


def test_a_model_without_a_template_gets_plain_roles(serve_model, tmp_path):
    served = serve_model(save_causal(tmp_path / "plain", template=None), model_type="causal")
    answer = chat(served)
    same = served.client.completions.create(
        model="tiny", prompt="user: hello\nassistant:", max_tokens=12, temperature=0
    )
    assert answer.choices[0].message.content == same.choices[0].text


@pytest.mark.parametrize("color", ["red", "navy"])
def test_an_answer_about_an_image_is_that_of_transformers(vision, color):
    picture = Image.new("RGB", (64, 48), color)
    answer = chat(vision, messages=about_image(data_uri(picture)), logprobs=True)
    processor = AutoProcessor.from_pretrained(vision.folder)
    model = AutoModelForImageTextToText.from_pretrained(vision.folder)
    parts = [{"type": "text", "text": "what is this"}, {"type": "image"}]
    text = processor.apply_chat_template([{"role": "user", "content": parts}], tokenize=False)
    inputs = processor(text=[text], images=[picture], return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    text = processor.tokenizer.decode(output[0, inputs.input_ids.shape[1] :], skip_special_tokens=True)
    assert answer.choices[0].message.content == text
    assert answer.usage.prompt_tokens == inputs.input_ids.shape[1]
    with torch.inference_mode():
        logprobs = model(**inputs).logits[0, -1].log_softmax(-1)
    assert answer.choices[0].logprobs.content[0].logprob == pytest.approx(float(logprobs.max()), abs=1e-4)


def test_answers_about_images_and_text_share_passes(vision):
    pictures = [Image.new("RGB", (64, 48), color) for color in ("red", "navy", "white")]
    asked = [about_image(data_uri(picture)) for picture in pictures] + [HELLO]
    alone = [chat(vision, messages=messages).choices[0].message.content for messages in asked]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda m: chat(vision, messages=m).choices[0].message.content, asked))
    assert together == alone


@pytest.mark.parametrize("uri", [data_uri(Image.new("RGB", (8, 8))), "data:image/png;base64,%%%"])
def test_a_text_model_refuses_images_without_a_look_at_them(causal, uri):
    with pytest.raises(openai.BadRequestError, match="reads text only"):
        chat(causal, messages=about_image(uri))


def huge_png(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header promises many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 100)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        (as_uri(b"\x89PNG" + b"\0" * (20 * 1024 * 1024)), "bytes; at most"),
        (as_uri(huge_png(60_000, 60_000)), "pixels"),
        (as_uri(huge_png(100, 100)), "damaged"),
        (as_uri(b"not an image"), "no image of a known kind"),
        ("data:image/png;base64,%%%", "not valid base64"),
        ("data:image/png;base64,\u00e9", "not valid base64"),
        ("data:image/png,abc", "must be of the form"),
        ("file:///etc/passwd", "data URI or an http"),
        ("http://127.0.0.1/cat.png", "fetches no addresses"),
    ],
)
def test_a_bad_image_is_a_400_that_says_why(vision, uri, words):
    with pytest.raises(openai.BadRequestError, match=words):
        chat(vision, messages=about_image(uri))
