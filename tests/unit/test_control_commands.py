"""Commands over the link are REST calls under another name."""

import threading

import pytest

from solarhost.control.commands import MAX_RUNNING, Commands, rest_call


@pytest.mark.parametrize(
    ("action", "call"),
    [
        ("create", ("POST", "/instances", {"config": {}})),
        ("list", ("GET", "/instances?config=%7B%7D", None)),
        ("get", ("GET", "/instances/i-1?config=%7B%7D", None)),
        ("update", ("PUT", "/instances/i-1", {"config": {}})),
        ("delete", ("DELETE", "/instances/i-1", None)),
        ("start", ("POST", "/instances/i-1/start", None)),
        ("stop", ("POST", "/instances/i-1/stop", None)),
        ("restart", ("POST", "/instances/i-1/restart", None)),
    ],
)
def test_each_action_is_its_rest_call(action, call):
    assert rest_call({"action": action, "instance_id": "i-1", "params": {"config": {}}}) == call


def test_parameters_of_logs_become_its_query():
    command = {"action": "logs", "instance_id": "i-1", "params": {"tail": 5, "since": None, "run": 2}}
    assert rest_call(command) == ("GET", "/instances/i-1/logs?tail=5&run=2", None)


@pytest.mark.parametrize("instance_id", ["../jobs", "a/b", "a?b=1", "a#b", "ä%2f"])
def test_an_id_stays_one_part_of_the_path(instance_id):
    _, path, _ = rest_call({"action": "get", "instance_id": instance_id})
    assert path.count("/") == 2
    assert "?" not in path
    assert "#" not in path


@pytest.mark.parametrize(
    "command",
    [
        None,
        [],
        {},
        {"id": "1"},
        {"id": "1", "action": "format"},
        {"id": "1", "action": ["start"]},
        {"id": "1", "action": "start"},
        {"id": "1", "action": "start", "instance_id": 5},
        {"id": "1", "action": "create", "params": "x"},
        {"id": None, "action": "list"},
        {"id": {}, "action": "list"},
    ],
)
def test_what_is_no_command_is_refused_and_runs_nothing(command):
    def dispatch(method, path, body):
        raise AssertionError("nothing may be called")

    answer = Commands(dispatch, enabled=True).answer(command)
    assert (answer["ok"], answer["status"]) == (False, 422)
    assert answer["body"]["detail"]


def test_a_repeated_command_runs_once():
    calls = []

    def dispatch(method, path, body):
        calls.append(path)
        return 200, {"instance": len(calls)}

    commands = Commands(dispatch, enabled=True)
    command = {"id": "c-1", "action": "create", "params": {}}
    first, second = commands.answer(command), commands.answer(command)
    assert first == second == {"id": "c-1", "ok": True, "status": 200, "body": {"instance": 1}}
    assert commands.answer({**command, "id": "c-2"})["body"] == {"instance": 2}


def test_a_repeated_command_joins_the_one_that_still_runs():
    go_on, began = threading.Event(), threading.Event()

    def dispatch(method, path, body):
        began.set()
        go_on.wait(10)
        return 200, {}

    commands = Commands(dispatch, enabled=True)
    answers = []
    command = {"id": "c-1", "action": "start", "instance_id": "i"}
    threads = [threading.Thread(target=lambda: answers.append(commands.answer(command))) for _ in range(2)]
    threads[0].start()
    assert began.wait(10)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert [answer["ok"] for answer in answers] == [True, True]


def test_more_commands_than_can_run_are_told_to_come_back():
    go_on, began = threading.Event(), threading.Semaphore(0)

    def dispatch(method, path, body):
        began.release()
        go_on.wait(10)
        return 200, {}

    commands = Commands(dispatch, enabled=True)

    def answer(number):
        return commands.answer({"id": number, "action": "start", "instance_id": "i"})

    threads = [threading.Thread(target=answer, args=(number,)) for number in range(MAX_RUNNING)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert began.acquire(timeout=10)
    assert answer("one-too-many")["status"] == 503
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert answer("one-too-many")["status"] == 200


def test_a_call_that_breaks_is_answered():
    def dispatch(method, path, body):
        raise RuntimeError("boom")

    answer = Commands(dispatch, enabled=True).answer({"id": 1, "action": "list"})
    assert (answer["id"], answer["ok"], answer["status"]) == (1, False, 500)
    assert "boom" not in str(answer)


def test_commands_can_be_turned_off():
    def dispatch(method, path, body):
        raise AssertionError("nothing may be called")

    answer = Commands(dispatch, enabled=False).answer({"id": 1, "action": "list"})
    assert (answer["ok"], answer["status"]) == (False, 403)
    assert "COMMANDS_OVER_LINK" in answer["body"]["detail"]
