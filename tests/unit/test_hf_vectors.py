"""Embeddings and classification of hf_server against transformers on the same weights."""

import base64
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from hf_server.engines import encode_with
from tests.hf_models import LABELS, save_classifier

pytest_plugins = ["tests.hf_fixtures"]

TEXTS = [
    "A cat sits on the mat.",
    "A kitten rests on a rug.",
    "Quantum field theory is hard",
    "short",
    "a much longer text that goes on and on, about nothing in particular, until it ends " * 4,
    "Größe, naïveté, 北京, 🦊",
]


def embed(served, inputs, **fields) -> np.ndarray:
    answer = served.client.embeddings.create(model="tiny", input=inputs, encoding_format="float", **fields)
    return np.array([one.embedding for one in answer.data], dtype=np.float32)


def cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)


@pytest.fixture(scope="module")
def reference(minilm_folder) -> np.ndarray:
    """Mean pooling of one text at a time, so without any padding."""
    model, tokenizer = AutoModel.from_pretrained(minilm_folder), AutoTokenizer.from_pretrained(minilm_folder)
    rows = []
    for text in TEXTS:
        with torch.inference_mode():
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        rows.append(torch.nn.functional.normalize(hidden.mean(0), dim=0).numpy())
    return np.array(rows)


def test_embeddings_in_a_batch_are_the_reference(embedding, reference):
    assert cosines(embed(embedding, TEXTS), reference) == pytest.approx(1, abs=1e-5)
    assert embed(embedding, TEXTS) == pytest.approx(reference, abs=1e-5)


def test_embeddings_alone_are_the_reference(embedding, reference):
    alone = np.concatenate([embed(embedding, text) for text in TEXTS])
    assert cosines(alone, reference) == pytest.approx(1, abs=1e-5)


def test_concurrent_requests_get_their_own_vectors(embedding, reference):
    places = [place % len(TEXTS) for place in range(32)]
    with ThreadPoolExecutor(16) as pool:
        vectors = list(pool.map(lambda place: embed(embedding, TEXTS[place])[0], places))
    assert cosines(np.array(vectors), reference[places]) == pytest.approx(1, abs=1e-5)


def test_similar_texts_are_near(embedding):
    cat, kitten, physics = embed(embedding, TEXTS[:3])
    assert cat @ kitten > 0.5 > cat @ physics


def test_base64_carries_the_same_numbers(embedding):
    answer = embedding.post("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"}).json()
    rows = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in answer["data"]]
    plain = embedding.post("/v1/embeddings", {"input": TEXTS, "encoding_format": "float"})
    read = np.array([one["embedding"] for one in plain.json()["data"]], dtype=np.float32)
    assert np.array_equal(read, rows)
    assert len(plain.text) < 13 * read.size  # no digits that float32 doesn't have


def test_token_ids_embed_like_their_text(embedding, minilm_folder):
    ids = AutoTokenizer.from_pretrained(minilm_folder)(TEXTS[:2])["input_ids"]
    assert embed(embedding, ids) == pytest.approx(embed(embedding, TEXTS[:2]), abs=1e-6)
    assert embed(embedding, ids[0]) == pytest.approx(embed(embedding, TEXTS[0]), abs=1e-6)


def test_dimensions_cut_and_normalize_again(embedding):
    whole, cut = embed(embedding, TEXTS[0])[0], embed(embedding, TEXTS[0], dimensions=16)[0]
    assert np.linalg.norm(cut) == pytest.approx(1, abs=1e-6)
    assert cut == pytest.approx(whole[:16] / np.linalg.norm(whole[:16]), abs=1e-6)


def test_padding_never_counts(embedding, minilm_folder):
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder)
    answer = embedding.client.embeddings.create(model="tiny", input=TEXTS)
    assert answer.usage.prompt_tokens == sum(len(tokenizer(text)["input_ids"]) for text in TEXTS)


def test_ids_are_those_of_the_tokenizer(minilm_folder, classifier_folder):
    for folder in (minilm_folder, classifier_folder):
        encode = encode_with(AutoTokenizer.from_pretrained(folder))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        for text in (*TEXTS, "", " ", "[CLS] a [SEP]</s><s> b[PAD]<pad>", "word " * 2000):
            assert encode(text) == tokenizer(text)["input_ids"]


def test_a_tokenizer_that_changes_the_text_is_asked_itself(classifier_folder):
    class Loud(PreTrainedTokenizerFast):
        def _encode_plus(self, text, *args, **kwargs):
            return super()._encode_plus(text.upper(), *args, **kwargs)

    tokenizer = Loud.from_pretrained(classifier_folder)
    assert encode_with(tokenizer)("fox") == tokenizer("FOX")["input_ids"]
    assert (
        encode_with(tokenizer)("fox") != AutoTokenizer.from_pretrained(classifier_folder)("fox")["input_ids"]
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": 7}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ["a", 7]}, "input"),
        ({"input": [1, -2]}, "input"),
        ({"input": [1, 10**9]}, "input"),
        ({"input": ["a"] * 10_000}, "input"),
        ({"input": "\ud800"}, "input"),
        ({"input": "word " * 1000}, "input"),
        ({"input": "a", "encoding_format": "xml"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 385}, "dimensions"),
    ],
)
def test_a_bad_field_is_a_400_that_names_it(embedding, fields, param):
    answer = embedding.post("/v1/embeddings", fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_text_over_the_limit_has_its_code(embedding):
    with pytest.raises(openai.BadRequestError) as caught:
        embed(embedding, "word " * 1000)
    assert caught.value.code == "context_length_exceeded"


def classify(served, inputs, **fields) -> dict:
    answer = served.post("/v1/classify", {"input": inputs, "return_all_scores": True, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def scores_of(answer: dict) -> list[list[float]]:
    return [[one["score"] for one in choice["all_scores"]] for choice in answer["choices"]]


def test_scores_are_those_of_transformers(classifier, classifier_folder):
    texts = ["hello", "the quick brown fox", "dog"]
    model = AutoModelForSequenceClassification.from_pretrained(classifier_folder)
    tokenizer = AutoTokenizer.from_pretrained(classifier_folder)
    with torch.inference_mode():
        expected = [
            model(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0].tolist() for text in texts
        ]
    answer = classify(classifier, texts)
    assert np.array(scores_of(answer)) == pytest.approx(np.array(expected), abs=1e-5)
    alone = [scores_of(classify(classifier, text))[0] for text in texts]
    assert np.array(alone) == pytest.approx(np.array(expected), abs=1e-5)
    best = [LABELS[int(np.argmax(row))] for row in expected]
    assert [choice["label"] for choice in answer["choices"]] == best
    assert answer["usage"]["prompt_tokens"] == sum(len(tokenizer(text)["input_ids"]) for text in texts)


def test_two_thousand_texts_at_once(classifier):
    rows = np.array(scores_of(classify(classifier, ["fox", "hello dog"] * 1024)))
    assert rows == pytest.approx(np.tile(rows[:2], (1024, 1)), abs=1e-5)


def test_only_the_best_score_unless_asked_for_all(classifier):
    answer = classifier.post("/v1/classify", {"input": "hello"}).json()
    assert answer["object"] == "classification"
    assert "all_scores" not in answer["choices"][0]


def test_a_multi_label_model_scores_each_label_by_itself(serve_model, tmp_path):
    folder = save_classifier(tmp_path / "multi", problem_type="multi_label_classification")
    served = serve_model(folder, model_type="classification", labels=("a", "b", "c"))
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.inference_mode():
        inputs = AutoTokenizer.from_pretrained(folder)("hello", return_tensors="pt")
        expected = model(**inputs).logits.sigmoid()[0].tolist()
    answer = classify(served, "hello")
    assert scores_of(answer)[0] == pytest.approx(expected, abs=1e-5)
    assert [one["label"] for one in answer["choices"][0]["all_scores"]] == ["a", "b", "c"]


@pytest.mark.parametrize("inputs", [[], None, 7, ["a", None], ["a"] * 10_000, "hello " * 100])
def test_bad_texts_to_classify_are_a_400(classifier, inputs):
    answer = classifier.post("/v1/classify", {"input": inputs})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")


def test_the_endpoint_of_another_kind_of_model_names_those_of_this_one(embedding):
    answer = embedding.post("/v1/chat/completions", {"messages": []})
    assert answer.status_code == 404
    assert "this embedding server takes POST /v1/embeddings" in answer.json()["error"]["message"]
