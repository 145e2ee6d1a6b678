"""llama-server's log: recorded ones of a real server, and the wordings of other builds."""

# ruff: noqa: E501 - log lines are as long as they are

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from solarhost.backends.base import RuntimeState, Usage
from solarhost.backends.llamacpp_log import KEPT_GENERATIONS, LlamaCppActivity, read_usage

RECORDED = Path(__file__).parents[1] / "data"
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def recorded(name: str) -> list[str]:
    return (RECORDED / name).read_text().splitlines()


def follow(lines) -> tuple[LlamaCppActivity, list[RuntimeState]]:
    """Feed one line a second; return the states that it went through."""
    activity = LlamaCppActivity()
    states = []
    for second, line in enumerate(lines):
        if activity.feed([line], START + timedelta(seconds=second)):
            states.append(activity.state)
    return activity, states


def counts(activity) -> list[tuple[int, int, int]]:
    return [(g.prompt_tokens, g.generated_tokens, g.cached_tokens) for g in activity.generations]


def test_recorded_chats_have_the_counts_of_their_usage_blocks():
    activity, _ = follow(recorded("llama-server-chat.log"))
    assert counts(activity) == [(29, 40, 0), (39, 200, 1)]
    last = activity.generations[-1]
    assert (last.slot_id, last.task_id, last.decode_tps, last.decode_ms_per_token) == (3, 44, 70.25, 14.23)
    assert last.source == "log"
    assert last.finished_at - last.started_at == timedelta(seconds=5)


def test_recorded_parallel_chats_have_the_counts_of_their_usage_blocks():
    activity, states = follow(recorded("llama-server-parallel.log"))
    assert counts(activity) == [(47, 60, 0), (327, 80, 0), (1827, 120, 0), (47, 60, 42)]
    assert max(state.active_slots for state in states) == 3
    assert RuntimeState() == activity.state


def test_one_batch_tells_the_same_as_line_by_line():
    lines = recorded("llama-server-parallel.log")
    activity = LlamaCppActivity()
    assert activity.feed(lines, START)
    assert counts(activity) == counts(follow(lines)[0])


def test_interleaved_slots_keep_their_own_counts():
    _, states = follow(recorded("llama-server-parallel.log"))
    prefill = [state for state in states if state.task_id == 2 and state.phase == "prefill"]
    assert [state.prefill_progress for state in prefill if state.prefill_progress] == [0.72, 1.0, 1.0, 1.0]
    decoding = next(state for state in states if state.phase == "generating" and state.task_id == 2)
    assert (decoding.slot_id, decoding.generated_tokens, decoding.decode_tps) == (1, 100, 27.89)


def test_an_embedding_frees_its_slot_and_is_no_generation():
    activity, states = follow(recorded("llama-server-embedding.log"))
    assert [state.active_slots for state in states] == [1, 2, 1, 0]
    assert counts(activity) == []
    assert activity.ready_hint


def test_a_failed_load_announces_no_readiness():
    activity, states = follow(recorded("llama-server-missing-model.log"))
    assert not activity.ready_hint
    assert states == []


def test_a_cancelled_request_frees_its_slot_and_is_no_generation():
    lines = [
        "0.24.173.149 I slot launch_slot_: id  0 | task 65 | processing task, is_child = 0",
        "0.24.500.000 I slot print_timing: id  0 | task 65 | n_gen =     12, tg =  27.89 t/s, tg_3s =  28.1 t/s",
        "0.24.823.160 W srv          stop: cancel task, id_task = 65",
        "0.24.823.310 I slot      release: id  0 | task 65 | stop processing: n_tokens = 37, truncated = 0",
        "0.25.000.000 I slot launch_slot_: id  0 | task 70 | processing task, is_child = 0",
        "0.26.000.000 I slot print_timing: id  0 | task 70 | prompt eval time =  1.00 ms /  5 tokens (  0.2 ms "
        "per token,  5000.00 tokens per second)",
        "0.26.000.001 I slot print_timing: id  0 | task 70 |        eval time =  9.00 ms / 10 tokens (  0.9 ms "
        "per token,  1111.11 tokens per second)",
        "0.26.000.002 I slot      release: id  0 | task 70 | stop processing: n_tokens = 14, truncated = 0",
    ]
    activity, states = follow(lines)
    assert [state.busy for state in states] == [True, True, False, True, True, False]
    assert counts(activity) == [(5, 10, 0)]


# Builds from 2024 to early 2026: the release came first, then the timings as bare lines.
OLDER = """\
main: HTTP server is listening, hostname: 127.0.0.1, port: 8080, http threads: 7
srv    load_model: loading model 'm.gguf'
main: model loaded
main: server is listening on http://127.0.0.1:8080 - starting the main loop
srv  update_slots: all slots are idle
slot launch_slot_: id  0 | task 0 | processing task
slot update_slots: id  0 | task 0 | new prompt, n_ctx_slot = 4096, n_keep = 0, n_prompt_tokens = 99
slot update_slots: id  0 | task 0 | kv cache rm [0, end)
slot update_slots: id  0 | task 0 | prompt processing progress, n_past = 64, n_tokens = 64, progress = 0.646465
slot update_slots: id  0 | task 0 | SWA checkpoint create, pos_min = 0, pos_max = 69, size = 1.6 MiB, total = 1/3
slot update_slots: id  0 | task 0 | prompt done, n_past = 99, n_tokens = 35
slot print_timing: id  0 | task 0 | n_decoded =     33, tg =  13.50 t/s
slot      release: id  0 | task 0 | stop processing: n_past = 496, truncated = 0
slot print_timing: id  0 | task 0 |
prompt eval time =     690.52 ms /    79 tokens (    6.97 ms per token,   143.37 tokens per second)
       eval time =   30117.78 ms /   398 tokens (   75.67 ms per token,    13.21 tokens per second)
      total time =   30808.30 ms /   497 tokens
srv  update_slots: all slots are idle
""".splitlines()


def test_older_wordings_are_understood():
    activity, states = follow(OLDER)
    assert [
        (s.phase, s.prefill_prompt_tokens, s.prefill_progress, s.checkpoint_index, s.generated_tokens)
        for s in states
        if s.busy
    ] == [
        ("prefill", None, None, None, None),
        ("prefill", 99, None, None, None),
        ("prefill", 99, 0.646465, None, None),
        ("prefill", 99, 0.646465, 1, None),
        ("generating", 99, 1.0, 1, None),
        ("generating", 99, 1.0, 1, 33),
    ]
    assert counts(activity) == [(99, 398, 20)]
    assert activity.generations[0].decode_tps == 13.21


def test_readiness_is_announced_only_when_the_model_is_loaded():
    assert not follow(OLDER[:2])[0].ready_hint
    assert follow(OLDER[:3])[0].ready_hint


def test_timings_before_the_release_count_as_well():
    release, *timings = OLDER[12:16]
    activity, _ = follow([*OLDER[:12], *timings, release])
    assert counts(activity) == [(99, 398, 20)]


def test_context_checkpoints_are_shown():
    line = "slot update_slots: id  1 | task 4 | created context checkpoint 2 of 32 (pos_min = 0, pos_max = 5)"
    _, states = follow([line])
    assert (states[-1].checkpoint_index, states[-1].checkpoint_total) == (2, 32)


def test_a_context_shift_does_not_change_the_count_of_the_prompt():
    activity, _ = follow(
        [
            "slot launch_slot_: id  0 | task 7 | processing task",
            "slot update_slots: id  0 | task 7 | slot context shift, n_keep = 1, n_left = 254, n_discard = 127",
            "slot print_timing: id  0 | task 7 | prompt eval time = 1.00 ms / 5 tokens (0.2 ms per token, 5.00 t",
            "slot print_timing: id  0 | task 7 |        eval time = 1.00 ms / 300 tokens ( 0.2 ms per token, "
            " 5.00 tokens per second)",
            "slot      release: id  0 | task 7 | stop processing: n_tokens = 200, truncated = 1",
        ]
    )
    assert counts(activity) == [(28, 300, 23)]


def test_one_generated_token_has_no_speed():
    activity, _ = follow(
        [
            "slot print_timing: id  3 | task 13 | prompt eval time = 110.02 ms / 5 tokens ( 22.00 ms per token, 4 t",
            "slot print_timing: id  3 | task 13 |   eval time = 0.00 ms / 1 tokens ( 0.00 ms per token, 0.00 tokens",
            "slot      release: id  3 | task 13 | stop processing: n_tokens = 25, truncated = 0",
        ]
    )
    assert counts(activity) == [(25, 1, 20)]
    assert activity.generations[0].decode_tps is None


@pytest.mark.parametrize("number", ["nan", "-nan", "inf"])
def test_divisions_by_zero_are_no_numbers(number):
    lines = [
        f"slot print_timing: id  0 | task 1 |  eval time = 0.00 ms / 2 tokens ( {number} ms per token, {number} tokens",
        "slot      release: id  0 | task 1 | stop processing: n_tokens = 9, truncated = 0",
    ]
    activity, _ = follow(lines)
    assert activity.generations[0].decode_ms_per_token is None


def test_generations_are_bounded():
    activity = LlamaCppActivity()
    for task in range(KEPT_GENERATIONS + 10):
        activity.feed(
            [
                f"slot print_timing: id  0 | task {task} | eval time = 1 ms / 2 tokens ( 1.0 ms per token, 1.0 tokens",
                f"slot      release: id  0 | task {task} | stop processing: n_tokens = 9, truncated = 0",
            ],
            START,
        )
    assert len(activity.generations) == KEPT_GENERATIONS
    assert activity.generations[-1].task_id == KEPT_GENERATIONS + 9


BUSY = "slot launch_slot_: id  0 | task 0 | processing task"


def test_metrics_overrule_a_busy_that_no_line_supports_any_more():
    activity, _ = follow([BUSY])
    assert not activity.correct(Usage(requests_processing=0))  # may be older than the line
    assert activity.state.busy
    assert activity.correct(Usage(requests_processing=0))
    assert activity.state == RuntimeState()


def test_metrics_show_a_request_that_began_before_the_log_was_followed():
    activity = LlamaCppActivity()
    assert activity.correct(Usage(requests_processing=2))
    assert (activity.state.busy, activity.state.active_slots) == (True, 2)
    assert activity.correct(Usage(requests_processing=0))
    assert not activity.state.busy


def test_metrics_that_say_nothing_change_nothing():
    activity, _ = follow([BUSY])
    before = replace(activity.state)
    for _ in range(3):
        assert not activity.correct(Usage())
        assert not activity.correct(Usage(requests_processing=1))
    assert activity.state == before


def test_other_lines_change_nothing():
    activity = LlamaCppActivity()
    assert not activity.feed(
        ["I slot get_availabl: id  3 | task -1 | selected slot by LRU, t_last = -1"], START
    )
    assert not activity.feed(
        ["x" * 100, "prompt eval time is a nice phrase", "| task |", "eval time ="], START
    )
    assert not activity.feed(
        [" eval time = 1 ms / 2 tokens ( 1.0 ms per token, 1.0 tokens per second)"], START
    )
    assert activity.state == RuntimeState()


METRICS = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed, excluding cached tokens
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 3214
llamacpp:prompt_tokens_cached_total 49
llamacpp:prompt_tokens_seconds 50.118
llamacpp:tokens_predicted_total 1.56e+02
llamacpp:requests_processing 0
llamacpp:requests_deferred{model="m"} 2
llamacpp:kv_cache_usage_ratio 0.25
"""


def test_metrics_are_read():
    assert read_usage(METRICS) == Usage(3214, 156, 49, 0, 2, 0.25)


def test_missing_and_broken_metrics_are_none():
    assert read_usage("") == Usage()
    assert read_usage("llamacpp:requests_processing nan\nllamacpp:prompt_tokens_total 7\n<html>") == Usage(7)
