"""The queues towards control: what is kept, what passes, in which order, and how much of it."""

import json
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from solarhost.control.batches import LINE_CHARACTERS, Message
from solarhost.control.outbox import KEPT_LIMIT, PASSING_LIMIT, UNCONFIRMED_LIMIT, Outbox
from solarhost.events import InstancesChanged, InstanceState, JobEvent, LogLines, StepLogLines
from tests.control_host import flat, job_ended, log_lines, pull

MESSAGE_LIMIT = 1_000_000  # bytes; a Socket.IO server closes the connection at a longer one


def listening() -> Outbox:
    outbox = Outbox()
    outbox.listen()
    return outbox


def step_line(seq: int, line: str = "x", **more) -> dict:
    return {
        "job_id": "j",
        "step_name": "s",
        "step_index": 0,
        "stream": "stdout",
        "seq": seq,
        "line": line,
        **more,
    }


def log_end(seq: int) -> JobEvent:
    return JobEvent("step_log", {"entries": [step_line(seq, "", completed=True, exit_code=0)]}, "u", 1)


def state(instance_id: str, busy: bool) -> InstanceState:
    return InstanceState(instance_id, "t", {"instance_id": instance_id, "timestamp": "t", "busy": busy})


def take_all(outbox: Outbox) -> list[Message]:
    """Everything, with a control that acknowledges at once."""
    messages = []
    while batch := outbox.take():
        messages += batch
        for message in batch:
            if message.kept:
                outbox.confirm(message.kept)
    return messages


def test_lines_states_and_progress_are_let_go_while_nobody_listens():
    outbox = Outbox()
    for event in (log_lines(0, 5), state("a", True), pull("downloading"), StepLogLines([step_line(1)])):
        outbox.put(event)
    assert outbox.is_empty
    assert not any(outbox.dropped().values())


def test_ends_and_status_changes_wait_for_a_connection():
    outbox = Outbox()
    events = [
        InstancesChanged([flat("running")]),
        job_ended(1),
        pull("completed"),
        pull("failed", "repo://b:1"),
        StepLogLines([step_line(1)]),
        log_end(2),
    ]
    for event in events:
        outbox.put(event)
    messages = take_all(outbox)
    assert [m.event for m in messages] == [
        "instances_update",
        "job_completed",
        "pull_progress",
        "pull_progress",
        "step_log",
    ]
    assert [entry["seq"] for entry in messages[-1].payload["entries"]] == [2]
    assert all(message.kept for message in messages)


def test_unacknowledged_events_are_sent_again_first_and_acknowledged_ones_never():
    outbox = listening()
    for number in range(3):
        outbox.put(job_ended(number))
    (first,) = outbox.take()
    outbox.confirm(first.kept)
    (second,) = outbox.take()
    outbox.put(job_ended(9))
    outbox.disconnected()
    outbox.confirm(second.kept)  # an acknowledgement that comes too late to count
    assert [event.payload["job_id"] for event in outbox.take_delivered()] == ["job-0"]
    assert [message.payload["job_id"] for message in take_all(outbox)] == ["job-1", "job-2", "job-9"]
    assert [event.payload["job_id"] for event in outbox.take_delivered()] == ["job-1", "job-2", "job-9"]
    assert outbox.take() == []


def test_what_control_never_acknowledges_is_given_up():
    outbox = listening()
    outbox.put(job_ended(1))
    outbox.take()
    assert outbox.confirm_sent_before(time.monotonic() - 10) == []
    assert len(outbox.confirm_sent_before(time.monotonic() + 1)) == 1
    assert outbox.is_empty
    assert len(outbox.take_delivered()) == 1


def test_few_events_are_unconfirmed_at_a_time_and_nothing_overtakes_the_others():
    outbox = listening()
    for number in range(UNCONFIRMED_LIMIT):
        outbox.put(job_ended(number))
    outbox.put(log_lines(0, 1))
    outbox.put(job_ended(UNCONFIRMED_LIMIT))
    outbox.put(log_lines(1, 1))
    outbox.put(state("a", True))
    outbox.put(pull("downloading"))
    first = outbox.take()
    assert [m.event for m in first] == [*["job_completed"] * UNCONFIRMED_LIMIT, "log_batch"]
    assert not outbox.kept_is_due
    assert outbox.take() == []
    outbox.confirm(first[0].kept)
    assert outbox.kept_is_due
    assert [m.event for m in outbox.take()] == [
        "job_completed",
        "log_batch",
        "instance_state_batch",
        "pull_progress",
    ]


def test_lists_of_instances_need_not_wait_for_each_other():
    outbox = listening()
    for event in (InstancesChanged([]), job_ended(1), InstancesChanged([]), log_lines(0, 1), job_ended(2)):
        outbox.put(event)
    first = outbox.take()
    assert [m.event for m in first] == ["instances_update", "job_completed", "instances_update", "log_batch"]
    assert outbox.take() == []
    outbox.confirm(first[1].kept)
    assert [m.payload["job_id"] for m in outbox.take()] == ["job-2"]


def test_a_disconnect_drops_what_passes_and_counts_it():
    outbox = listening()
    outbox.put(log_lines(0, 7))
    outbox.put(state("a", True))
    outbox.disconnected()
    assert outbox.is_empty
    assert outbox.dropped()["logs"] == 7


def test_the_newest_lines_stay_and_the_others_are_counted():
    outbox = listening()
    for first in range(0, 3 * PASSING_LIMIT, 100):
        outbox.put(log_lines(first, 100))
    assert outbox.queued()["logs"] == PASSING_LIMIT
    assert outbox.dropped()["logs"] == 2 * PASSING_LIMIT
    entries = [entry for message in outbox.take() for entry in message.payload["entries"]]
    assert [entry["seq"] for entry in entries] == list(range(2 * PASSING_LIMIT, 3 * PASSING_LIMIT))


def test_one_huge_batch_keeps_its_newest_lines():
    outbox = listening()
    outbox.put(log_lines(0, PASSING_LIMIT + 5))
    entries = [entry for message in outbox.take() for entry in message.payload["entries"]]
    assert (entries[0]["seq"], entries[-1]["seq"]) == (5, PASSING_LIMIT + 4)
    assert outbox.dropped()["logs"] == 5


def test_few_but_long_lines_are_bounded_too():
    outbox = listening()
    for seq in range(1000):
        outbox.put(log_lines(seq, 1, "x" * LINE_CHARACTERS))
    assert sum(outbox.queued().values()) * LINE_CHARACTERS <= 8 * 1024 * 1024
    assert outbox.dropped()["logs"] + outbox.queued()["logs"] == 1000


def test_lists_of_instances_make_room_before_the_end_of_a_job_does():
    outbox = Outbox()
    outbox.put(job_ended(1))
    for _ in range(KEPT_LIMIT + 50):
        outbox.put(InstancesChanged([flat("failed")]))
    messages = take_all(outbox)
    assert len(messages) == KEPT_LIMIT
    assert messages[0].event == "job_completed"
    assert outbox.dropped()["kept"] == 51


def test_the_newest_job_events_are_kept():
    outbox = Outbox()
    for number in range(KEPT_LIMIT + 5):
        outbox.put(job_ended(number))
    messages = take_all(outbox)
    assert (messages[0].payload["job_id"], messages[-1].payload["job_id"]) == (
        "job-5",
        f"job-{KEPT_LIMIT + 4}",
    )


def test_only_the_latest_state_of_each_instance_is_sent():
    outbox = listening()
    for event in (state("a", True), state("b", True), state("a", False)):
        outbox.put(event)
    (message,) = outbox.take()
    assert {entry["instance_id"]: entry["data"]["busy"] for entry in message.payload["entries"]} == {
        "a": False,
        "b": True,
    }
    assert "instance_id" not in message.payload["entries"][0]["data"]


def test_lines_are_batched_but_never_cross_the_end_of_their_step():
    outbox = listening()
    outbox.put(StepLogLines([step_line(1)]))
    outbox.put(StepLogLines([step_line(2)]))
    outbox.put(log_end(3))
    outbox.put(JobEvent("step_completed", {"job_id": "j"}, "u", 3))
    outbox.put(JobEvent("step_started", {"job_id": "j"}, "u", 4))
    outbox.put(StepLogLines([step_line(1)]))
    messages = take_all(outbox)
    assert [m.event for m in messages] == [
        "step_log",
        "step_log",
        "step_completed",
        "step_started",
        "step_log",
    ]
    assert [[e["seq"] for e in m.payload["entries"]] for m in messages if m.event == "step_log"] == [
        [1, 2],
        [3],
        [1],
    ]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(max_size=70_000), max_size=5), st.integers(1, 400))
def test_no_message_is_too_long_for_the_server(texts, repeat):
    outbox = listening()
    lines = [*texts, "\U0001f600" * 60_000, "\x00" * 60_000] * repeat
    outbox.put(LogLines("i", 0, "t", lines[-PASSING_LIMIT:]))
    for message in outbox.take():
        assert len(json.dumps([message.event, message.payload])) < MESSAGE_LIMIT
