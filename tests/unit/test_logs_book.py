"""Lines of growing files: numbered, kept, streamed, found again."""

import json
import os
import re
import stat
from datetime import UTC, datetime

import pytest

from solarhost import events
from solarhost.errors import NotFound, StoreError
from tests.descriptors import left
from tests.logs_world import ID, World, append, followed, nothing, shown, until


@pytest.fixture
def agent(tmp_path):
    """Start an agent on the same folder as the one before it; all are closed at the end."""
    worlds = []

    def start(**changes):
        worlds.append(World(tmp_path / "logs", **changes))
        return worlds[-1]

    yield start
    for world in worlds:
        world.close()


def payloads(frames: bytes):
    """The JSON texts of WebSocket frames."""
    found = []
    while frames:
        assert frames[0] == 0x81
        size, at = frames[1], 2
        if size == 126:
            size, at = int.from_bytes(frames[2:4], "big"), 4
        elif size == 127:
            size, at = int.from_bytes(frames[2:10], "big"), 10
        found.append(json.loads(frames[at : at + size]))
        frames = frames[at + size :]
    return found


def test_a_log_file_is_private_and_named_after_alias_and_instance(agent):
    path = agent().book.begin_run(ID, "org/llama-3:8b", 1)
    assert re.fullmatch(rf"org-llama-3-8b_{ID}_\d+\.log", path.name)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "alias", ["..", "../../etc/x", "a\\b c*?[d]", "x" * 200, "é" * 200, "_", "a_1_2.log"]
)
def test_no_alias_leaves_the_folder_or_hides_its_file(agent, alias):
    world = agent()
    path = world.run(b"hello\n", alias=alias)
    assert path.parent.name == "logs"
    assert len(path.name.encode()) < 255
    world.book.forget(ID)
    assert shown(world.book.read(ID)) == [(0, "hello")]


def test_runs_in_the_same_second_have_their_own_files(agent):
    world = agent()
    paths = [world.run(b"run %d\n" % run, run=run) for run in range(1, 6)]
    assert len(set(paths)) == 5
    for run in range(1, 6):
        assert shown(world.book.read(ID, run=run)) == [(0, f"run {run}")]


def test_a_folder_that_cannot_be_used_is_a_clear_error(tmp_path):
    (tmp_path / "logs").write_text("a file in the way")
    book = World(tmp_path / "logs").book
    with pytest.raises(StoreError, match="no log file for instance a1b2"):
        book.begin_run(ID, "model", 1)
    with pytest.raises(StoreError, match="can be read: Not a directory"):
        book.read(ID)
    assert book.last_lines(ID, 5) == []


def test_a_file_that_cannot_be_read_for_a_while_is_read_later(agent):
    world = agent()
    path = world.book.begin_run(ID, "model", 1)
    path.unlink()
    path.mkdir()
    tail = world.book.follow(ID, path, 1, nothing)
    until(lambda: world.problems.current())
    path.rmdir()
    append(path, b"at last\n")
    until(lambda: world.book.last_lines(ID, 1) == ["at last"])
    assert world.problems.current() == []
    tail.finish()
    tail.join(10)
    assert not tail.is_alive()


def test_a_child_that_ends_while_no_file_can_be_opened_is_read_to_its_end(agent):
    world = agent()
    path = world.book.begin_run(ID, "model", 1)
    append(path, b"a\nb")
    with left(0):
        tail = world.book.follow(ID, path, 1, nothing)
        until(lambda: any("Too many open files" in problem for problem in world.problems.current()))
        tail.finish()
        tail.join(0.5)
    tail.join(10)
    assert [line for batch in world.published for line in batch.lines] == ["a", "b"]
    assert world.problems.current() == []


def test_numbers_go_on_across_runs_and_agents(agent):
    first = agent()
    first.run(b"a\nb\n", run=1)
    first.run(b"c\n", run=2)
    assert shown(first.book.read(ID)) == [(0, "a"), (1, "b"), (2, "c")]
    first.close()
    second = agent()
    second.run(b"d\n", run=3)
    assert shown(second.book.read(ID)) == [(3, "d")]


def test_the_last_lines_are_those_of_the_latest_run(agent):
    world = agent()
    world.run(b"CUDA error: out of memory\n", run=1, failed=True)
    world.run(b"", run=2, failed=True)
    assert world.book.last_lines(ID, 5) == [], "nothing that an earlier run said explains this one"
    world.run(b"a\nb\n", run=3)
    assert world.book.last_lines(ID, 5) == ["a", "b"]
    assert len(world.book.read(ID)) == 3, "the log itself goes on across runs"


def test_lines_are_redacted_everywhere(agent):
    world = agent()
    seen = []
    path = world.book.begin_run(ID, "model", 1)
    tail = world.book.follow(ID, path, 1, seen.extend, secrets=["own-key-7"])
    append(path, b"Bearer host-key-42, own-key-7\n")
    tail.finish()
    tail.join(10)
    assert seen == ["Bearer ***, ***"]
    assert world.book.last_lines(ID, 5) == seen
    assert [event.lines for event in world.published] == [seen]
    world.book.forget(ID)
    assert world.book.last_lines(ID, 5) == seen, "another instance may have the same key"


def test_a_key_stays_masked_in_files_that_outlive_the_instance(agent):
    first = agent()
    for run, key in ((1, "old-key-1"), (2, "new-key-2")):
        path = first.book.begin_run(ID, "model", run)
        tail = first.book.follow(ID, path, run, nothing, secrets=[key])
        append(path, b"old-key-1 new-key-2\n")
        tail.finish()
        tail.join(10)
    first.close()
    later = agent(retention_s=0.0)
    later.book.sweep(set())  # no instance has this id any more
    assert shown(later.book.read(ID)) == [(0, "*** ***")]
    assert shown(later.book.read(ID, run=2)) == [(0, "*** ***")]


def test_batches_are_published_with_their_numbers(agent):
    world = agent()
    world.run(b"a\nb\n")
    world.run(b"c\n", run=2)
    numbered = [
        (event.first_seq + i, line) for event in world.published for i, line in enumerate(event.lines)
    ]
    assert numbered == [(0, "a"), (1, "b"), (2, "c")]
    assert all(isinstance(event, events.LogLines) and event.instance_id == ID for event in world.published)


def test_a_parser_that_stumbles_does_not_end_the_log(agent):
    world = agent()

    def stumble(_lines):
        raise RuntimeError("unexpected wording")

    path = world.book.begin_run(ID, "model", 1)
    tail = world.book.follow(ID, path, 1, stumble)
    append(path, b"a\n")
    until(lambda: world.book.last_lines(ID, 1) == ["a"])
    append(path, b"b\n")
    until(lambda: world.book.last_lines(ID, 1) == ["b"])
    assert tail.is_alive()


def test_memory_keeps_the_newest_lines(agent):
    world = agent(buffer_size=3)
    with followed(world) as path:
        for number in range(10):
            append(path, b"%d\n" % number)
            until(lambda number=number: world.book.last_lines(ID, 1) == [str(number)])
        assert shown(world.book.read(ID)) == [(7, "7"), (8, "8"), (9, "9")]
        assert shown(world.book.read(ID, since=8)) == [(9, "9")]
        assert shown(world.book.read(ID, tail=2)) == [(8, "8"), (9, "9")]
        assert shown(world.book.read(ID, tail=2, since=8)) == [(9, "9")]
        assert world.book.read(ID, since=9) == []
        assert world.book.read(ID, tail=0) == []


def test_only_the_newest_ended_instances_keep_lines_in_memory(agent):
    world = agent(retained=2)
    for name in ("a", "b", "c"):
        world.run(b"x\ny\n", instance_id="first")
        world.run(b"from " + name.encode() + b"\n", instance_id=name)
    numbers = [world.book.read(name)[0].seq for name in ("a", "b", "c")]
    assert numbers == [0, 0, 0]
    assert [line.seq for line in world.book.read("first")] == [0, 1, 2, 3, 4, 5]
    world.run(b"z\n", instance_id="d")
    world.run(b"z\n", instance_id="e")
    assert [line.seq for line in world.book.read("first")] == [0, 1]  # from the newest file
    world.run(b"again\n", instance_id="first", run=9)
    assert shown(world.book.read("first")) == [(6, "again")]  # numbers went on all the same


def test_a_deleted_instance_is_read_from_its_newest_file(agent):
    world = agent()
    world.run(b"old\n", run=1)
    path = world.run(b"new 1\nnew 2\n", run=2)
    world.book.forget(ID)
    lines = world.book.read(ID)
    assert shown(lines) == [(0, "new 1"), (1, "new 2")]
    assert {line.timestamp for line in lines} == {
        datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat()
    }
    assert shown(world.book.read(ID, tail=1)) == [(0, "new 2")]
    assert shown(world.book.read(ID, run=1)) == [(0, "old")]


@pytest.mark.parametrize("name", ["unknown", "*", "../x", "a_b", "", "a/b", "x" * 300])
def test_an_unknown_or_impossible_id_is_not_found(agent, name):
    world = agent()
    world.run(b"x\n")
    with pytest.raises(NotFound):
        world.book.read(name)
    assert world.book.last_lines(name, 3) == []


def test_an_unknown_run_is_not_found(agent):
    world = agent()
    world.run(b"x\n")
    with pytest.raises(NotFound, match="run 7"):
        world.book.read(ID, run=7)


def test_a_cursor_gets_the_buffer_then_each_new_line_once(agent):
    world = agent()
    with followed(world, b"a\nb\n") as path:
        until(lambda: len(world.book.read(ID)) == 2)
        cursor = world.book.subscribe(ID)
        batch = cursor.next(0)
        assert (batch.dropped, batch.first_seq, batch.lines) == (0, 0, ["a", "b"])
        assert cursor.next(0) is None
        append(path, b"c\n")
        assert cursor.next(10).lines == ["c"]


def test_a_cursor_starts_where_it_was_asked_to(agent):
    world = agent()
    with followed(world, b"a\nb\nc\n"):
        until(lambda: world.book.last_lines(ID, 1) == ["c"])
        assert world.book.subscribe(ID, since=1).next(0).lines == ["c"]
        assert world.book.subscribe(ID, tail=2).next(0).lines == ["b", "c"]
        assert world.book.subscribe(ID, since=2).next(0) is None
        assert world.book.subscribe(ID, tail=0).next(0) is None
        assert world.book.subscribe(ID, since=999).next(0).lines == ["a", "b", "c"]


def test_frames_are_websocket_texts_encoded_once(agent):
    world = agent()
    with followed(world, 'a "quoted" \\ ü\n'.encode() + b"y" * 70_000 + b"\n" + b"z" * 200 + b"\n"):
        until(lambda: world.book.last_lines(ID, 1) == ["z" * 200])
        one, other = world.book.subscribe(ID).next(0), world.book.subscribe(ID).next(0)
        found = payloads(one.frames)
        assert [set(message) for message in found] == [{"seq", "timestamp", "line"}] * 4
        assert [(m["seq"], m["line"]) for m in found] == list(enumerate(one.lines))
        assert other.frames == one.frames
        assert [m["seq"] for m in payloads(world.book.subscribe(ID, since=1).next(0).frames)] == [2, 3]


def test_a_reader_that_fell_behind_is_told_how_much_it_lost(agent):
    world = agent(buffer_size=3)
    with followed(world) as path:
        cursor = world.book.subscribe(ID)
        for number in range(10):
            append(path, b"%d\n" % number)
            until(lambda number=number: world.book.last_lines(ID, 1) == [str(number)])
        batch = cursor.next(0)
        assert (batch.dropped, batch.first_seq, batch.lines) == (7, 7, ["7", "8", "9"])
        assert payloads(batch.frames)[0] == {"dropped": 7, "next_seq": 7}
        assert world.book.stats().dropped == 7
        assert cursor.next(0) is None


def test_a_deleted_instance_ends_its_streams(agent):
    world = agent()
    world.run(b"x\n")
    cursor = world.book.subscribe(ID)
    assert cursor.next(0).lines == ["x"]
    world.book.forget(ID)
    assert cursor.next(10) is None
    assert cursor.closed


def test_there_is_no_stream_of_what_does_not_exist(agent):
    world = agent()
    world.deleted.add(ID)
    for name in (ID, "../x", ""):
        with pytest.raises(NotFound):
            world.book.subscribe(name)


def test_a_stream_that_is_opened_while_its_instance_is_deleted_is_refused(agent):
    answers = iter([True, False])  # it exists, then no more
    world = agent(exists=lambda _id: next(answers))
    with pytest.raises(NotFound):
        world.book.subscribe(ID)
    assert world.book.stats().followed == 0


def test_a_stream_outlives_a_restart_of_its_instance(agent):
    world = agent()
    cursor = world.book.subscribe(ID)
    world.run(b"one\n", run=1)
    world.run(b"two\n", run=2)
    lines = []
    while batch := cursor.next(0):
        lines += batch.lines
    assert lines == ["one", "two"]
    assert not cursor.closed


def test_a_stream_goes_on_after_a_kill_without_the_lines_that_it_had(agent):
    first = agent()
    with followed(first, b"a\nb\nc\n") as path:
        ledger = path.parent / f"{ID}.lines.json"
        noted = ledger.read_bytes()
        until(lambda: first.book.last_lines(ID, 1) == ["c"])
    first.close()
    ledger.write_bytes(noted)  # as a killed agent leaves it
    second = agent()
    known, foreign = second.book.subscribe(ID, since=2), second.book.subscribe(ID, since=99)
    assert known.next(0) is None
    append(path, b"d\n")
    tail = second.book.follow(ID, path, 1, nothing)
    assert known.next(10).lines == ["d"]
    assert foreign.next(10).lines == ["a", "b", "c", "d"]
    tail.stop()


def test_the_next_agent_goes_on_where_the_last_one_stopped(agent):
    first = agent()
    path = first.book.begin_run(ID, "model", 1)
    first.book.follow(ID, path, 1, nothing)
    append(path, b"a\nb\nhalf")
    until(lambda: first.book.last_lines(ID, 1) == ["b"])
    first.close()
    append(path, b" line\nc\n")
    second = agent()
    seen = []
    tail = second.book.follow(ID, path, 1, seen.extend)
    tail.finish()
    tail.join(10)
    assert seen == ["half line", "c"]
    assert shown(second.book.read(ID)) == [(0, "a"), (1, "b"), (2, "half line"), (3, "c")]


def test_progress_lines_keep_the_numbers_right_for_the_next_agent(agent):
    first = agent()
    path = first.book.begin_run(ID, "model", 1)
    first.book.follow(ID, path, 1, nothing)
    append(path, b"start\n10%\r20%\r3")
    until(lambda: first.book.last_lines(ID, 1) == ["20%"])
    append(path, b"0%\nloaded\n")
    until(lambda: first.book.last_lines(ID, 1) == ["loaded"])
    before = shown(first.book.read(ID))
    first.close()
    second = agent()
    second.book.follow(ID, path, 1, nothing)
    assert before == [(0, "start"), (1, "20%"), (2, "30%"), (3, "loaded")]
    assert shown(second.book.read(ID)) == before


def test_numbers_that_an_agent_showed_but_could_not_note_are_given_to_no_other_line(agent):
    first = agent()
    first.run(b"a\nb\n")
    ledger = next(first.folder.glob("*.lines.json"))
    noted = ledger.read_text()
    with open(first.book._file(ID, 1), "ab") as file:
        file.write(b"c\n")
    first.run(b"d\n", run=2)
    first.close()
    ledger.write_text(noted)  # as after a kill within a second, or with a full disk
    second = agent()
    second.run(b"e\n", run=3)
    assert shown(second.book.read(ID)) == [(2, "c"), (3, "d"), (4, "e")]
    second.run(b"f\n", run=4)
    assert shown(second.book.read(ID, tail=1)) == [(5, "f")]


def test_lines_that_are_not_noted_stay_in_a_file_over_its_cap(agent):
    first = agent(file_max_bytes=1 << 20)
    path = first.book.begin_run(ID, "model", 1)
    append(path, b"".join(b"%07d\n" % number for number in range(300_000)))
    ledger = first.folder / f"{ID}.lines.json"
    noted = ledger.rename(first.folder / "noted")
    ledger.mkdir()  # as with a full disk
    first.book.follow(ID, path, 1, nothing)
    until(lambda: shown(first.book.read(ID, tail=1)) == [(299_999, "0299999")])
    first.close()
    ledger.rmdir()
    noted.rename(ledger)
    second = agent(file_max_bytes=1 << 20)
    second.book.follow(ID, path, 1, nothing)
    until(lambda: shown(second.book.read(ID, tail=1)) == [(299_999, "0299999")])
    until(lambda: path.stat().st_blocks * 512 <= 1 << 20)  # now that they are


def test_what_could_not_be_noted_is_noted_once_it_can(agent):
    world = agent()
    with followed(world, b"a\n"):
        ledger = world.folder / f"{ID}.lines.json"
        until(lambda: shown(world.book.read(ID)) == [(0, "a")])
        ledger.unlink()
        ledger.mkdir()
        with open(world.book._file(ID, 1), "ab") as file:
            file.write(b"b\n")
        until(lambda: any("repeat log lines" in text for text in world.problems.current()))
        ledger.rmdir()
        world.book.save_again()
    assert world.problems.current() == []
    assert json.loads(ledger.read_text())["seq"] == 2


def test_without_a_checkpoint_lines_are_numbered_anew_from_the_files_that_are_there(agent):
    first = agent()
    first.run(b"a\n")
    first.close()
    ledger = next(first.folder.glob("*.lines.json"))
    ledger.write_text('{"seq": "many"}')
    second = agent()
    second.run(b"b\n", run=2)
    assert shown(second.book.read(ID)) == [(0, "a"), (1, "b")]


def test_a_log_cut_short_by_someone_is_read_from_its_beginning(agent):
    world = agent()
    with followed(world, b"first\nsecond\n") as path:
        until(lambda: world.book.last_lines(ID, 1) == ["second"])
        os.truncate(path, 0)
        append(path, b"anew\n")
        until(lambda: world.book.last_lines(ID, 1) == ["anew"])
        assert shown(world.book.read(ID)) == [(0, "first"), (1, "second"), (2, "anew")]


def test_a_missing_file_is_a_problem_not_a_crash(agent):
    world = agent()
    path = world.book.begin_run(ID, "model", 1)
    path.unlink()
    tail = world.book.follow(ID, path, 1, nothing)
    tail.join(10)
    assert not tail.is_alive()
    assert "can't be read" in world.problems.current()[0]
    world.book.forget(ID)
    assert world.problems.current() == []


def test_stats_count_lines_bytes_and_files(agent):
    world = agent()
    with followed(world, b"a\nbb\n"):
        until(lambda: world.book.last_lines(ID, 1) == ["bb"])
        stats = world.book.stats()
        assert (stats.lines, stats.bytes, stats.followed) == (2, 5, 1)
    assert world.book.stats().followed == 0
