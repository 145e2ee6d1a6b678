"""Lines of a model server: any of them is read, whatever it says, and what is told of it is JSON."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solarhost.backends.base import Activity
from solarhost.backends.huggingface import HuggingFace
from solarhost.backends.llamacpp import LlamaCpp
from solarhost.backends.llamacpp_log import MAX_SLOTS
from solarhost.logs.redaction import Redactor
from solarhost.logs.splitter import LineSplitter
from tests.fuzz.strategies import altered, digits

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DATA = Path(__file__).parents[1] / "data"
LLAMA = [line for path in sorted(DATA.glob("llama-server-*.log")) for line in path.read_text().splitlines()]
HUGGING_FACE = [
    "time=2026-11-30T05:25:15.403+00:00 level=info event=ready model=m device=cpu duration_s=26.9",
    "time=2026-11-30T05:25:50.0+00:00 event=request_start id=c-1 endpoint=/v1/x prompt_tokens=18 inputs=1",
    "time=2026-11-30T05:25:50.0+00:00 event=first_token id=c-1 ttft_s=0.03 cached_tokens=17",
    "time=2026-11-30T05:25:51.0+00:00 event=progress active=1 waiting=0 generated_tokens=12 tps=20.0",
    "time=2026-11-30T05:25:52.0+00:00 event=request_end id=c-1 status=200 prompt_tokens=18 "
    "generated_tokens=21 cached_tokens=17 duration_s=2.0 decode_s=1.0 finish_reason=length",
    'time=2026-11-30T05:25:52.0+00:00 level=error event=start_failed message="a \\"file\\" is missing"',
]
METRICS = "\n".join(
    f"{name} {{value}}"
    for name in (
        *("llamacpp:prompt_tokens_total", "llamacpp:requests_processing", "llamacpp:kv_cache_usage_ratio"),
        *("hf_server_prompt_tokens_total", "hf_server_requests_processing"),
        "hf_server_kv_cache_usage_ratio",
    )
)


def lines_like(real: list[str]) -> st.SearchStrategy[list[str]]:
    line = st.sampled_from(real)
    return st.lists(st.one_of(line, line.flatmap(altered), st.text(max_size=50)), max_size=12)


def strict(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def follow(activity: Activity, batches: list[list[str]], usage: Any) -> None:
    for batch in batches:
        activity.feed(batch, NOW)
        strict(activity.state.as_json())
        for generation in activity.generations:
            strict(generation.as_json())
            assert generation.finished_at is not None
            assert generation.finished_at.tzinfo is not None
    activity.correct(usage)
    strict(activity.state.as_json())


@given(st.lists(lines_like(LLAMA), max_size=3), digits)
def test_any_line_of_llama_server(batches: list[list[str]], number: str) -> None:
    backend = LlamaCpp("")
    usage = backend.usage(METRICS.format(value=number))
    strict(usage.as_json())
    follow(backend.activity(), batches, usage)
    for code in (0, 1, -9, None):
        backend.explain_failure([line for batch in batches for line in batch], code)


@given(st.lists(lines_like(HUGGING_FACE), max_size=3), digits)
def test_any_line_of_a_huggingface_server(batches: list[list[str]], number: str) -> None:
    backend = HuggingFace("causal", {})
    usage = backend.usage(METRICS.format(value=number))
    strict(usage.as_json())
    follow(backend.activity(), batches, usage)
    for code in (0, 1, -9, None):
        backend.explain_failure([line for batch in batches for line in batch], code)


@given(st.text())
def test_any_text_as_metrics(text: str) -> None:
    for backend in (LlamaCpp(""), HuggingFace("causal", {})):
        strict(backend.usage(text).as_json())


@pytest.mark.parametrize(
    ("backend", "line"),
    [
        (LlamaCpp(""), "slot launch_slot_: id {0} | task {0} | processing task"),
        (HuggingFace("causal", {}), "event=request_start id=c-{0} prompt_tokens=1"),
    ],
)
def test_a_log_that_never_ends_a_request_takes_no_more_memory(backend: Any, line: str) -> None:
    activity = backend.activity()
    activity.feed([line.format(number) for number in range(12_000)], NOW)
    assert activity.state.active_slots in (MAX_SLOTS, 10_000)


SECRETS = ["key-1", "key-12", "1key", "\N{SNOWMAN}key"]


@given(
    st.lists(
        st.sampled_from([*SECRETS, "k", "key", "-1", "\n", "\r", "\r\n", "x" * 40_000, "\udcff"]), max_size=12
    ),
    st.lists(st.integers(1, 50_000), min_size=1, max_size=3),
)
def test_no_line_shows_a_secret_however_its_bytes_arrive(pieces: list[str], sizes: list[int]) -> None:
    data = "".join(pieces).encode("utf-8", "surrogateescape")
    splitter = LineSplitter(Redactor(SECRETS))
    lines: list[str] = []
    at = turn = 0
    while at < len(data):
        size = max(sizes[turn % len(sizes)], len(data) // 200)
        lines += [*splitter.feed(data[at : at + size]), *splitter.take_progress()]
        at, turn = at + size, turn + 1
    lines += splitter.flush()
    assert not [line for line in lines for secret in SECRETS if secret in line]
