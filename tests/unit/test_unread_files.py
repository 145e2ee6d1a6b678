"""What can't be read now is taken neither for damaged nor for gone, and is not written over."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from solarhost.containers.output import Chunk
from solarhost.errors import InvalidRequest, StoreError
from solarhost.instances import census
from solarhost.instances.process import host_identity
from solarhost.instances.store import InstanceStore
from solarhost.jobs.logfile import LogExtent, StepLogCursor
from solarhost.jobs.steplog import StepLog, checkpoint_path, stored_extent, stored_recent
from solarhost.jobs.store import JobStore
from solarhost.logs.catchup import catch_up
from solarhost.logs.channel import Channel, Counters
from solarhost.logs.ledger import Checkpoint, Ledger
from solarhost.logs.names import log_files
from solarhost.logs.redaction import Redactor
from solarhost.modelstore.manifest import Entry, FileStamp, Manifest
from solarhost.modelstore.selection import choose_weights
from solarhost.modelstore.store import ModelStore
from solarhost.problems import Problems
from solarhost.settings import Settings
from tests.descriptors import left
from tests.jobs_fixtures import Heard
from tests.logs_world import ID, World

SHORT = "can't be read: Too many open files"
ENTRY = Entry(
    slug="hf--o--m",
    source_uri="huggingface://o/m",
    size_bytes=6,
    downloaded_at="2026-01-01T00:00:00+00:00",
    file_filters=("a*", "b*"),
    files={"a.gguf": FileStamp(3, 1), "b.gguf": FileStamp(3, 1)},
)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_manifest_is_read_again(tmp_path: Path) -> None:
    Manifest(tmp_path, Problems()).put(ENTRY)
    before, problems = contents(tmp_path), Problems()
    manifest = Manifest(tmp_path, problems)
    with left(0):
        with pytest.raises(StoreError, match=SHORT):
            manifest.entries()
        with pytest.raises(StoreError, match=SHORT):
            manifest.put(replace(ENTRY, slug="hf--o--n", source_uri="huggingface://o/n"))
        with pytest.raises(StoreError, match=SHORT):
            manifest.remove(ENTRY.slug)
    assert contents(tmp_path) == before
    assert problems.current() == []
    assert list(manifest.entries()) == [ENTRY]


def test_no_start_without_the_instances(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"instances": []}')
    store = InstanceStore(path, Problems(), lambda config: config)
    with left(0), pytest.raises(StoreError, match=SHORT):
        store.load()
    assert contents(tmp_path) == {"config.json": b'{"instances": []}'}
    store.load()


def test_damaged_instances_stay_in_place_while_their_copy_can_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{broken")
    (tmp_path / ".config.json.copy").mkdir()
    store = InstanceStore(path, Problems(), lambda config: config)
    with pytest.raises(StoreError, match="copy can't be read: Is a directory"):
        store.load()
    assert contents(tmp_path) == {"config.json": b"{broken"}


def test_no_start_without_a_job_whose_containers_may_run(tmp_path: Path) -> None:
    (tmp_path / "one.json").mkdir()
    store = JobStore(tmp_path, Problems())
    with pytest.raises(StoreError, match=r"one\.json can't be read: Is a directory"):
        store.load()
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]


def test_the_numbers_of_a_log_do_not_begin_anew(tmp_path: Path) -> None:
    world = World(tmp_path / "logs")
    world.run(b"a\nb\n")
    world.close()
    with left(0), pytest.raises(StoreError, match=SHORT):
        Ledger(world.folder, ID, Problems())
    assert Ledger(world.folder, ID, Problems()).checkpoint.seq == 2


def test_lines_that_were_shown_and_not_noted_keep_their_numbers(tmp_path: Path) -> None:
    world = World(tmp_path / "logs")
    path = world.run(b"a\nb\n")
    world.close()
    channel = Channel(0, 100, Counters())
    files, noted = log_files(world.folder, ID), Checkpoint(path.name, 0, 0)
    with left(0), pytest.raises(StoreError, match=SHORT):
        catch_up(channel, noted, files, Redactor([]))
    assert channel.next_seq == 0
    catch_up(channel, noted, files, Redactor([]))
    assert channel.next_seq == 2


def test_the_output_of_a_step_is_not_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "step.log"

    def step_log() -> StepLog:
        return StepLog("job", "step", 0, path, Redactor([]), Heard().publish)

    first = step_log()
    first.open()
    first.add([Chunk("stdout", "2026-01-01T00:00:00+00:00", b"1\n2\n")])
    first.close()
    before = contents(tmp_path)
    second = step_log()
    with left(1), pytest.raises(StoreError, match=SHORT):  # enough for the log alone
        second.open()
    second.complete()
    second.close()
    assert contents(tmp_path) == before
    second = step_log()
    second.open()
    assert [entry["line"] for entry in second.recent()] == ["1", "2"]
    second.close()


def test_what_a_step_printed_is_not_taken_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "step.log"
    path.write_text("1\n")
    checkpoint_path(path).write_text(json.dumps({"size": 2, "lines": 1, "recent": []}))
    cursor = StepLogCursor(path, lambda: LogExtent(2, 1, is_final=True), since=0)
    with left(0):
        for ask in (stored_recent, stored_extent):
            with pytest.raises(StoreError, match=SHORT):
                ask(path)
        with pytest.raises(StoreError, match=SHORT):
            cursor.next(0)
    part = cursor.next(0)
    assert part is not None
    assert part.lines == ["1"]


def test_a_deletion_of_some_files_that_sees_none_deletes_nothing(tmp_path: Path) -> None:
    store = ModelStore(Settings(models_dir=tmp_path), lambda _: None, Problems(), lambda: ())
    Manifest(tmp_path, Problems()).put(ENTRY)
    folder = tmp_path / ENTRY.slug
    folder.mkdir()
    for name in ENTRY.files:
        (folder / name).write_text("abc")
    store.list()
    with left(0):
        with pytest.raises(StoreError, match=SHORT):
            store.delete(ENTRY.slug, ("a*",))
        with pytest.raises(StoreError, match=SHORT):
            choose_weights(folder)
    assert sorted(contents(folder)) == ["a.gguf", "b.gguf"]
    with pytest.raises(InvalidRequest, match="2 files of the same size"):
        choose_weights(folder)


def test_children_are_not_taken_for_those_of_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(census, "PATIENCE_S", 0.0)
    identity = host_identity(tmp_path)
    with left(0), pytest.raises(census.Unseen):
        host_identity(tmp_path)
    assert host_identity(tmp_path) == identity
