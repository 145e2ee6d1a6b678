"""Log files on disk: which go, how the end of a huge one is read, how a growing one stays small."""

import errno
import os
import time
from threading import Timer

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solarhost.errors import NotFound
from solarhost.logs import disk
from solarhost.logs.growth import GrowthWatch
from solarhost.logs.redaction import Redactor
from solarhost.logs.retention import FILES_EACH
from tests.logs_world import ID, World, append, followed, nothing, shown, until

DAY = 86400.0
PLAIN = Redactor(())


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path / "logs", retention_s=DAY)
    yield world
    world.close()


def age(path, seconds):
    then = time.time() - seconds
    os.utime(path, (then, then))


def left(world):
    return {path.name for path in world.folder.glob("*.log")}


# -- retention


def test_old_files_go_except_the_newest_of_each_alias_and_instance(world):
    old = [
        world.run(b"x\n", instance_id="a", run=1),
        world.run(b"x\n", instance_id="a", run=2),
        world.run(b"x\n", instance_id="a", alias="renamed", run=3),
        world.run(b"x\n", instance_id="b", run=1),
    ]
    for path in old:
        age(path, 2 * DAY)
    young = world.run(b"x\n", instance_id="a", alias="renamed", run=4)
    world.book.sweep({"a", "b"})
    assert left(world) == {old[1].name, old[3].name, young.name}


def test_files_of_others_stay(world):
    world.run(b"x\n")
    other = world.folder / "notes.log"
    other.write_text("mine")
    age(other, 9 * DAY)
    world.book.sweep(set())
    assert other.exists()


def test_a_file_that_is_followed_stays(world):
    with followed(world, b"x\n", run=1) as path:
        age(path, 2 * DAY)
        newer = world.book.begin_run(ID, "model", 2)
        world.book.sweep({ID})
        assert left(world) == {path.name, newer.name}


def test_in_a_crash_loop_the_first_failure_stays_and_the_rest_is_bounded(world):
    world.run(b"a good run\n", run=1)
    for run in range(2, 103):
        world.run(b"failure %d\n" % run, run=run, failed=True)
    world.book.forget(ID)
    assert len(left(world)) <= FILES_EACH + 2
    assert shown(world.book.read(ID, run=2)) == [(0, "failure 2")]
    assert shown(world.book.read(ID, run=102)) == [(0, "failure 102")]
    with pytest.raises(NotFound):
        world.book.read(ID, run=50)


def test_the_first_failure_goes_with_age_once_a_run_went_well(world):
    first = world.run(b"failure\n", run=1, failed=True)
    age(first, 2 * DAY)
    world.run(b"failure\n", run=2, failed=True)
    world.book.sweep({ID})
    assert first.exists()
    world.run(b"well\n", run=3)
    world.book.sweep({ID})
    assert not first.exists()


def test_the_first_failure_is_known_to_the_next_agent(tmp_path, world):
    first = world.run(b"failure 1\n", run=1, failed=True)
    world.close()
    later = World(tmp_path / "logs", retention_s=DAY)
    for run in range(2, FILES_EACH + 10):
        later.run(b"failure\n", run=run, failed=True)
    assert first.exists()
    later.close()


def test_what_is_kept_of_a_gone_instance_goes_with_its_last_file(world):
    world.run(b"x\n", instance_id="gone").unlink()
    world.run(b"x\n", instance_id="gone-with-log")
    world.run(b"x\n", instance_id="here").unlink()
    for name in ("gone", "gone-with-log", "here"):
        world.book.forget(name)
        age(world.folder / f"{name}.lines.json", 2 * DAY)
    world.book.sweep({"here"})
    assert {path.name for path in world.folder.glob("*.json")} == {
        "gone-with-log.lines.json",
        "here.lines.json",
    }


def test_sweeping_a_folder_that_was_never_made_is_fine(tmp_path):
    World(tmp_path / "never").book.sweep(set())


# -- reading the end


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 40_000).map(lambda n: b"l" * n), max_size=12),
    st.booleans(),
    st.integers(0, 14),
)
def test_the_tail_read_backwards_is_the_tail_read_forwards(tmp_path_factory, lines, ended, count):
    path = tmp_path_factory.mktemp("tail") / "x"
    data = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    path.write_bytes(data)
    forwards = data.decode().split("\n")
    if forwards[-1] == "":
        forwards.pop()
    found, _ = disk.read_tail(path, count, PLAIN)
    assert found == forwards[max(0, len(forwards) - count) :]


def test_the_tail_of_a_huge_file_is_read_from_its_end(tmp_path):
    path = tmp_path / "huge"
    with open(path, "wb") as file:
        file.write(b"head\n")
        file.truncate(10 << 30)  # a hole of 10 GiB
        file.seek(0, os.SEEK_END)
        file.write(b"\none\ntwo\n")
    assert disk.read_tail(path, 2, PLAIN)[0] == ["one", "two"]
    assert disk.read_tail(path, 100, PLAIN)[0] == ["head", "", "one", "two"]


def test_a_read_is_bounded_however_long_the_lines_are(tmp_path):
    path = tmp_path / "wide"
    path.write_bytes(b"w" * (2 * disk.MAX_TAIL_BYTES) + b"\n")
    found, _ = disk.read_tail(path, 1_000_000, PLAIN)
    assert sum(map(len, found)) <= 1.1 * disk.MAX_TAIL_BYTES


# -- the size cap


def numbered(count):
    return b"".join(b"line %07d of a long log that says little\n" % number for number in range(count))


def test_a_large_file_gives_back_its_middle(tmp_path):
    path = tmp_path / "log"
    data = numbered(100_000)
    path.write_bytes(data)
    disk.trim(path, 1 << 20, len(data))
    assert path.stat().st_blocks * 512 <= 1 << 20
    assert path.stat().st_size == len(data)  # so that offsets stay true
    descriptor = os.open(path, os.O_RDONLY)
    kept = b"".join(disk.data_between(descriptor, 0, len(data)))
    os.close(descriptor)
    assert kept[: disk.HEAD_BYTES] == data[: disk.HEAD_BYTES]
    assert data.endswith(kept[-500_000:])
    assert set(kept.splitlines()) <= set(data.splitlines())  # only whole lines are left
    assert disk.read_tail(path, 3, PLAIN)[0] == numbered(100_000).decode().splitlines()[-3:]


def test_a_small_file_is_left_alone(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(numbered(1000))
    disk.trim(path, 1 << 20, 1 << 40)
    assert path.read_bytes() == numbered(1000)


def test_what_was_not_read_yet_stays(tmp_path):
    path = tmp_path / "log"
    data = numbered(100_000)
    path.write_bytes(data)
    disk.trim(path, 1 << 20, 2 << 20)
    assert path.read_bytes()[2 << 20 :] == data[2 << 20 :]


def test_a_followed_file_is_kept_small_while_it_grows(tmp_path):
    world = World(tmp_path / "logs", file_max_bytes=1 << 20)
    with followed(world) as path:
        for part in range(10):
            append(path, numbered(20_000))
            until(lambda part=part: world.book.stats().lines == (part + 1) * 20_000)
        until(lambda: path.stat().st_blocks * 512 < 3 << 20)
        assert path.stat().st_size == 10 * len(numbered(20_000))
        assert shown(world.book.read(ID, tail=1)) == [
            (199_999, "line 0019999 of a long log that says little")
        ]
    world.book.forget(ID)
    assert world.book.last_lines(ID, 1) == ["line 0019999 of a long log that says little"]
    world.book.sweep(set())
    assert path.stat().st_blocks * 512 <= 1 << 20
    world.close()


def test_a_file_that_cannot_be_kept_small_is_a_problem(world, monkeypatch):
    def refuse(*_arguments):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    world.run(b"x" * 100_000 + b"\n" + b"y" * 100_000 + b"\n" + b"z" * 2_000_000 + b"\n")
    monkeypatch.setattr(disk, "_punch_hole", refuse)
    small = World(world.folder, file_max_bytes=1 << 20)
    small.book.sweep({ID})
    assert "can't be kept under 1 MiB" in small.problems.current()[0]
    monkeypatch.undo()
    small.book.sweep({ID})
    assert small.problems.current() == []


# -- trouble with the disk


def test_a_place_that_cannot_be_noted_is_a_problem_and_lines_go_on(world):
    in_the_way = world.folder / f".{ID}.lines.json.draft"
    in_the_way.mkdir(parents=True)
    with followed(world, b"a\n") as path:
        until(lambda: world.book.stats().lines == 1)
        assert "a restart of the agent would repeat log lines" in world.problems.current()[0]
        in_the_way.rmdir()
        append(path, b"b\n")
        until(lambda: world.problems.current() == [])
        until(lambda: shown(world.book.read(ID)) == [(0, "a"), (1, "b")])


def test_a_log_dir_that_vanished_is_made_again(world):
    world.run(b"x\n")
    for path in world.folder.iterdir():
        path.unlink()
    world.folder.rmdir()
    world.run(b"y\n", run=2)
    assert shown(world.book.read(ID)) == [(0, "x"), (1, "y")]


# -- waiting for growth


@pytest.fixture
def watched(tmp_path):
    path = tmp_path / "log"
    with open(path, "ab", buffering=0) as file:
        watch = GrowthWatch(file.fileno(), path)
        yield watch, file, path
        watch.close()


def test_growth_ends_a_wait(watched):
    watch, file, _ = watched
    for written in range(3):
        writer = Timer(0.05, file.write, [b"x"])
        writer.start()
        started = time.monotonic()
        watch.wait(written, timeout_s=30)
        assert time.monotonic() - started < 20
        writer.join()


def test_growth_before_the_wait_ends_it_too(watched):
    watch, file, _ = watched
    file.write(b"x")
    started = time.monotonic()
    watch.wait(0, timeout_s=30)
    assert time.monotonic() - started < 20


def test_growth_is_seen_without_the_kernels_help_too(watched):
    watch, file, path = watched
    path.unlink()  # so that inotify can't find it
    writer = Timer(0.05, file.write, [b"x"])
    writer.start()
    started = time.monotonic()
    watch.wait(0, timeout_s=30)
    assert time.monotonic() - started < 20
    writer.join()


def test_a_wake_ends_a_wait_and_is_harmless_after_the_close(watched):
    watch, _, _ = watched
    watch.wake()
    started = time.monotonic()
    watch.wait(0, timeout_s=30)
    watch.pause(30)
    assert time.monotonic() - started < 20
    watch.close()
    watch.wake()


def test_following_leaves_no_descriptor_and_no_thread_behind(world):
    world.run(b"x\n")
    process = psutil.Process()
    before = process.num_fds(), process.num_threads()
    for run in range(2, 30):
        path = world.book.begin_run(ID, "model", run)
        tail = world.book.follow(ID, path, run, nothing)
        tail.finish()
        tail.join(10)
    # The last one may still be leaving, as what other tests left behind may.
    until(lambda: process.num_fds() <= before[0] and process.num_threads() <= before[1])
