"""The small parts of a pull."""

import io
import os
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
import requests

from solarhost.modelstore.cache import is_intact
from solarhost.modelstore.disk import GIB, DiskPromises
from solarhost.modelstore.failures import Interrupted, PullError
from solarhost.modelstore.filters import covers, literal, matches, union
from solarhost.modelstore.manifest import Entry, FileStamp
from solarhost.modelstore.progress import Progress
from solarhost.modelstore.staging import Leftovers, Staging, files_in
from solarhost.modelstore.transport import LONGEST_WAIT_S, Retries, broken, check, retry_after_s, shown


def test_a_broken_connection_names_the_host_but_not_the_signed_address():
    request = requests.Request("GET", "https://cdn.example.com/blob?sig=secret").prepare()
    told = str(broken(requests.ConnectionError("refused", request=request), 1))
    assert told == "the connection to cdn.example.com failed: ConnectionError: refused"
    assert str(broken(OSError("gone"), 1)) == "the connection failed: OSError: gone"


@pytest.mark.parametrize(
    ("name", "filters", "kept"),
    [
        ("a.gguf", None, True),
        ("a.gguf", [], False),
        ("sub/a-Q4.gguf", ["*Q4*"], True),
        ("sub/a.gguf", ["sub/"], True),
        ("a.GGUF", ["*.gguf"], False),
        ("b.gguf", ["a*", "b*"], True),
    ],
)
def test_a_file_is_kept_when_any_pattern_matches(name, filters, kept):
    assert matches(name, filters) is kept


@pytest.mark.parametrize("name", ["plain", "a*b", "a?b", "a[1]b"])
def test_a_literal_pattern_matches_its_name_alone(name):
    assert matches(name, [literal(name)])
    assert not matches(f"{name}x", [literal(name)])
    assert not matches(name.replace("*", "z").replace("?", "z").replace("[1]", "1") + "y", [literal(name)])


def test_what_is_here_covers_what_is_asked_or_not():
    assert covers(None, ["a"])
    assert covers(["a", "b"], ["b"])
    assert not covers(["a"], ["b"])
    assert not covers(["a"], None)
    assert union(["b"], ["a"]) == ["a", "b"]
    assert union(["b"], None) is None


def test_retry_after_is_read_in_both_forms():
    soon = datetime.now(UTC) + timedelta(seconds=30)
    assert retry_after_s({}) == 0
    assert retry_after_s({"Retry-After": "7"}) == 7
    assert retry_after_s({"Retry-After": "999999"}) == LONGEST_WAIT_S
    assert retry_after_s({"Retry-After": "soon"}) == 0
    assert 20 < retry_after_s({"Retry-After": format_datetime(soon, usegmt=True)}) <= 30
    assert retry_after_s({"Retry-After": format_datetime(soon - timedelta(days=1), usegmt=True)}) == 0


def test_addresses_are_shown_without_keys():
    assert shown("https://user:pw@host:8/a/b?sig=secret#x") == "https://host:8/a/b"


def answered(status, *, redirected=False):
    response = requests.Response()
    response.status_code = status
    response.raw = io.BytesIO()
    response.url = "https://host/x?sig=secret"
    response.history = [requests.Response()] if redirected else []
    return response


@pytest.mark.parametrize(
    ("status", "redirected", "outcome"),
    [
        (401, False, "auth_failed"),
        (403, False, "auth_failed"),
        (404, False, "not_found"),
        (416, False, "model_pull_failed"),
        (403, True, None),
        (404, True, None),
        (429, False, None),
        (500, False, None),
        (503, True, None),
    ],
)
def test_answers_are_sorted_by_whether_asking_again_helps(status, redirected, outcome):
    with pytest.raises(PullError if outcome else Interrupted) as caught:
        check(answered(status, redirected=redirected))
    assert "secret" not in str(caught.value)
    if outcome:
        assert caught.value.code == outcome


def test_tries_without_progress_come_to_an_end():
    told = []
    retries = Retries(2, 0.0, told.append)
    for _ in range(5):
        retries.wait(Interrupted("x"))
        retries.progressed()
    assert told == ["x; try 2 of 3 in 0 s", None] * 5
    retries.wait(Interrupted("x"))
    retries.wait(Interrupted("x"))
    with pytest.raises(PullError, match="gave up after 3 tries: last words"):
        retries.wait(Interrupted("last words"))


def test_progress_is_told_at_phases_and_intervals_and_never_falls():
    events = []
    progress = Progress("huggingface://o/m", 10, 3600.0, events.append)
    progress.tick()
    progress.tick()
    progress.enter("downloading")
    progress.count(7)
    progress.count(3)
    progress.expect(20)
    progress.enter("completed")
    assert [(event.phase, event.bytes_done, event.bytes_total) for event in events] == [
        ("resolving", 0, 10),
        ("downloading", 0, 10),
        ("completed", 7, 20),
    ]


def test_disk_is_promised_once(tmp_path):
    reclaimed = []
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    disk = DiskPromises(tmp_path, 0.0, lambda: reclaimed.append(1))
    first, second = (Progress("u", free, 1.0, lambda event: None) for _ in range(2))
    disk.give(first, int(free * 0.6))
    assert not reclaimed
    with pytest.raises(PullError, match="promised to other pulls"):
        disk.give(second, int(free * 0.6))
    assert reclaimed == [1]
    disk.end(first)
    disk.give(second, int(free * 0.6))


def test_disk_that_must_stay_free_is_watched(tmp_path):
    free_gb = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize / GIB
    disk = DiskPromises(tmp_path, free_gb * 2, lambda: None)
    pull = Progress("u", 1, 1.0, lambda event: None)
    disk.check(pull)  # it writes nothing
    disk.give(pull, 0)
    with pytest.raises(PullError, match="MIN_FREE_DISK_GB"):
        disk.give(pull, 1)


def write(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def read(folder):
    return {name: (folder / name).read_text() for name in files_in(folder)}


def test_a_tree_takes_the_place_of_the_version_before(tmp_path):
    place, staging = tmp_path / "m", Staging(tmp_path, "m")
    write(place, model="old", gone="old", mine__notes="mine")
    write(staging.tree, model="new", fresh="new")
    staging.publish({"model", "gone"})
    assert read(place) == {"model": "new", "fresh": "new", "mine/notes": "mine"}
    staging.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_place_that_is_a_link_is_left_alone(tmp_path):
    write(tmp_path / "real", model="mine")
    (tmp_path / "m").symlink_to(tmp_path / "real")
    staging = Staging(tmp_path, "m")
    write(staging.tree, model="new")
    with pytest.raises(OSError, match="not a folder"):
        staging.publish(())
    assert read(tmp_path / "real") == {"model": "mine"}


def test_a_replacement_can_be_withdrawn(tmp_path):
    place, staging = tmp_path / "m", Staging(tmp_path, "m")
    write(place, model="old")
    write(staging.tree, model="new")
    staging.publish({"model"})
    staging.withdraw()
    staging.remove()
    assert read(place) == {"model": "old"}
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_replacement_cut_short_is_undone(tmp_path):
    staging = Staging(tmp_path, "m")
    write(staging.path / "retired", model="old")
    write(staging.tree, model="new")
    write(staging.path / "parts", abc="part")
    Leftovers(tmp_path).recover()
    assert read(tmp_path / "m") == {"model": "old"}
    assert read(staging.path) == {"parts/abc": "part"}


def test_a_replacement_that_was_done_is_kept(tmp_path):
    staging = Staging(tmp_path, "m")
    write(staging.path / "retired", model="old")
    write(tmp_path / "m", model="new")
    Leftovers(tmp_path).recover()
    assert read(tmp_path / "m") == {"model": "new"}
    assert read(staging.path) == {}


def test_old_parts_go_and_fresh_or_live_ones_stay(tmp_path):
    for name in ("old", "live", "fresh"):
        write(Staging(tmp_path, name).path / "parts", abc="x")
    for name in ("old", "live"):
        folder = Staging(tmp_path, name).path
        for path in (folder / "parts" / "abc", folder / "parts", folder):
            os.utime(path, (time.time() - 5000,) * 2)
    leftovers = Leftovers(tmp_path)
    leftovers.discard(4000, live={"live"})
    leftovers.empty_trash()
    assert sorted(path.name for path in (tmp_path / ".staging").iterdir()) == ["fresh", "live"]
    leftovers.discard(0, live=())
    leftovers.empty_trash()
    assert list(tmp_path.iterdir()) == []


def test_a_model_is_intact_by_size_and_time(tmp_path):
    write(tmp_path, model="abc")
    status = (tmp_path / "model").stat()
    common = {"slug": "m", "source_uri": "u", "size_bytes": 3, "downloaded_at": "t"}
    entry = Entry(**common, files={"model": FileStamp(3, status.st_mtime_ns)}, file_digests={"model": "0"})
    assert is_intact(tmp_path, entry)
    assert is_intact(tmp_path, Entry(**common))  # it names no files
    assert not is_intact(tmp_path / "none", Entry(**common))
    assert not is_intact(tmp_path, Entry(**common, file_digests={"model": "0"}))  # no record of its time
    os.utime(tmp_path / "model", (1, 1))
    assert not is_intact(tmp_path, entry)
