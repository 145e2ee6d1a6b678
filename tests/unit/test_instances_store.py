"""The store of instances: acknowledged means written, and nothing is forgotten."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from solarhost.errors import InvalidRequest, StoreError
from solarhost.instances.process import ProcessId
from solarhost.instances.record import Record
from solarhost.instances.status import Reason, Status
from solarhost.instances.store import InstanceStore
from solarhost.problems import Problems


def check_config(given: Any) -> dict[str, Any]:
    if given.get("backend_type") != "llamacpp":
        raise InvalidRequest("unknown backend")
    return dict(given)


def record(instance_id: str = "a", **fields: Any) -> Record:
    config = {"backend_type": "llamacpp", "alias": "m"}
    return Record(id=instance_id, config=config, created_at="2026-01-01T00:00:00+00:00", **fields)


def opened(path: Path) -> tuple[InstanceStore, Problems]:
    problems = Problems()
    store = InstanceStore(path, problems, check_config)
    store.load()
    return store, problems


def test_what_was_put_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    full = record(
        status=Status.RUNNING,
        reason=Reason.READY,
        process=ProcessId(7, "boot/1", "d"),
        gpu_ids=(0, "MIG-x"),
        vram_gb=1.5,
        port=3500,
        run=3,
    )
    opened(path)[0].put(full)
    assert opened(path)[0].all() == [full]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_failed_write_changes_neither_file_nor_memory(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    store, _ = opened(folder / "config.json")
    store.put(record("a"))
    (folder / "config.json").unlink()
    (folder / ".config.json.copy").unlink()
    folder.rmdir()
    with pytest.raises(StoreError):
        store.put(record("b"))
    with pytest.raises(StoreError):
        store.remove("a")
    assert [r.id for r in store.all()] == ["a"]


def test_a_fact_is_published_even_when_it_cannot_be_written_and_written_later(tmp_path: Path) -> None:
    folder = tmp_path / "away"
    folder.mkdir()
    path = folder / "config.json"
    store, problems = opened(path)
    store.put(record("a", status=Status.RUNNING))
    hidden = folder.rename(tmp_path / "hidden")
    store.note(replace(store.all()[0], status=Status.FAILED))
    assert store.all()[0].status is Status.FAILED
    assert any("config.json" in sentence for sentence in problems.current())
    assert "config.json" in (store.unwritten or "")
    with pytest.raises(StoreError):
        store.flush()
    hidden.rename(folder)
    store.flush()
    assert json.loads(path.read_text())["instances"][0]["status"] == "failed"
    assert problems.current() == []
    assert store.unwritten is None


def test_version_grows_with_each_change(tmp_path: Path) -> None:
    store, _ = opened(tmp_path / "config.json")
    seen = [store.version]
    store.put(record("a"))
    seen.append(store.version)
    store.note(record("a", status=Status.STARTING))
    seen.append(store.version)
    store.remove("a")
    seen.append(store.version)
    assert seen == sorted(set(seen))


def test_a_file_that_holds_null_is_set_aside_as_any_other_damage(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    opened(path)[0].put(record("a"))
    path.write_text("null")
    store, problems = opened(path)
    assert [kept.id for kept in store.all()] == ["a"]
    assert len(problems.current()) == 1


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    link, real = tmp_path / "config.json", tmp_path / "volume" / "instances.json"
    real.parent.mkdir()
    link.symlink_to(real)
    opened(link)[0].put(record("a"))
    assert link.is_symlink()
    assert [kept.id for kept in opened(real)[0].all()] == ["a"]


def test_file_and_copy_both_damaged_are_both_kept(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{")
    (tmp_path / ".config.json.copy").write_text("}")
    store, problems = opened(path)
    assert store.all() == []
    kept = sorted(file.read_text() for file in tmp_path.iterdir())
    assert kept == ["{", "}"]
    assert len(problems.current()) == 1


def test_a_file_that_is_gone_is_read_from_its_copy(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    opened(path)[0].put(record("a"))
    path.unlink()
    store, problems = opened(path)
    assert [r.id for r in store.all()] == ["a"]
    assert len(problems.current()) == 1
    store.flush()
    assert path.exists()


@pytest.mark.parametrize(
    "wrong",
    [{"vram_gb": "x"}, {"log_path": 5}, {"retry_count": "z"}, {"error_message": {}}, {"id": "a/../b"}],
)
def test_a_mistyped_entry_is_kept_but_not_used(tmp_path: Path, wrong: dict[str, Any]) -> None:
    path = tmp_path / "config.json"
    entry = {**record("a").to_store(), **wrong}
    path.write_text(json.dumps({"instances": [entry]}))
    store, problems = opened(path)
    assert store.all() == []
    assert len(problems.current()) == 1
    store.put(record("b"))
    assert entry in json.loads(path.read_text())["instances"]


def test_an_entry_that_is_no_instance_is_written_back(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    strange = [5, {"id": "x"}, {"id": "y", "config": {"backend_type": "new"}, "created_at": "t"}]
    path.write_text(json.dumps({"instances": strange}))
    store, problems = opened(path)
    assert store.all() == []
    assert len(problems.current()) == 3
    store.put(record("a"))
    assert json.loads(path.read_text())["instances"][1:] == strange


def test_what_is_noted_together_is_written_once_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    store, _ = opened(path)
    store.put(record("a"))
    store.put(record("b"))
    before = path.read_bytes()
    with store.together():
        store.note(record("a", status=Status.RUNNING))
        store.note(record("b", status=Status.RUNNING))
        assert path.read_bytes() == before
        assert {known.status for known in store.all()} == {Status.RUNNING}
    assert {known.status for known in opened(path)[0].all()} == {Status.RUNNING}


def test_nothing_is_written_when_nothing_was_noted(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    store, _ = opened(path)
    with store.together():
        pass
    assert not path.exists()
