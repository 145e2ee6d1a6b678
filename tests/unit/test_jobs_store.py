"""Job records and workspaces on disk."""

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from solarhost.errors import StoreError
from solarhost.jobs.definitions import parse
from solarhost.jobs.errors import JobExists, NoSuchJob
from solarhost.jobs.records import Job, Status, Step
from solarhost.jobs.store import JobStore
from solarhost.jobs.workspace import Workspaces
from solarhost.problems import Problems

STEPS = [
    {"name": "fetch", "image": "a", "command": "run 'it all'", "environment": {"TOKEN": "t"}},
    {"name": "train", "image": "b:1", "gpu": {"device_ids": ["0", "GPU-1"]}, "is_preparation_step": True},
    {"name": "all", "image": "c", "gpu": {"count": -1}},
]


def make_job(job_id: str = "one") -> Job:
    definition = parse({"job_id": job_id, "name": "n", "steps": STEPS, "training_config": {"epochs": 3}})
    return Job(
        uid="u", definition=definition, created_at="2026-01-01T00:00:00+00:00",
        steps=tuple(Step(name=step.name) for step in definition.steps),
    )  # fmt: skip


@pytest.fixture
def problems():
    return Problems()


@pytest.fixture
def store(tmp_path, problems):
    store = JobStore(tmp_path / "records", problems)
    store.load()
    return store


def test_a_record_comes_back_as_it_was(store, tmp_path, problems):
    job = make_job().with_step(
        0, status=Status.RUNNING, container_id="c", started_at="2026-01-01T00:00:01+00:00"
    )
    store.add(job)
    again = JobStore(tmp_path / "records", problems)
    again.load()
    assert again.all() == [job]
    assert again.get("one").definition.steps[0].command == ("run", "it all")


def test_records_can_hold_secrets_so_nobody_else_reads_them(store, tmp_path):
    store.add(make_job())
    assert stat.S_IMODE((tmp_path / "records").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "records/one.json").stat().st_mode) == 0o600


def test_a_failed_write_changes_nothing(store, tmp_path):
    store.add(make_job())
    (tmp_path / "records/.one.json.draft").mkdir()  # no draft can be made
    with pytest.raises(StoreError):
        store.update("one", lambda job: job.ended(Status.FAILED, "2026-01-01T00:00:02+00:00"))
    assert store.get("one").status is Status.PENDING
    assert json.loads((tmp_path / "records/one.json").read_text())["status"] == "pending"


def test_an_id_is_taken_until_its_job_is_removed(store):
    store.add(make_job())
    with pytest.raises(JobExists):
        store.add(make_job())
    store.remove("one")
    with pytest.raises(NoSuchJob):
        store.get("one")
    store.add(make_job())


@pytest.mark.parametrize("text", ["{half", "[]", "{}", '{"status": "levitating"}', "null"])
def test_a_record_that_makes_no_sense_is_kept_aside_and_reported(store, tmp_path, problems, text):
    store.add(make_job("fine"))
    (tmp_path / "records/broken.json").write_text(text)
    again = JobStore(tmp_path / "records", problems)
    again.load()
    assert [job.id for job in again.all()] == ["fine"]
    kept = [path for path in (tmp_path / "records").iterdir() if "unreadable" in path.name]
    assert [path.read_text() for path in kept] == [text]
    assert len(problems.current()) == 1


def test_a_link_that_a_job_left_is_deleted_and_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    workspaces = Workspaces(
        tmp_path / "jobs", uid=os.getuid(), gid=os.getgid(), min_free_gb=0, hf_cache_dir=None
    )
    workspaces.folder.mkdir()
    workspaces.create(make_job())
    output = workspaces.path("one") / "output"
    (output / "folder").symlink_to(outside)
    (output / "file").symlink_to(outside / "precious")
    workspaces.remove("one")
    assert not workspaces.path("one").exists()
    assert (outside / "precious").exists()


def ended_job(uid: str) -> Job:
    """With three events: its start, its first step's, its end."""
    at = "2026-01-01T00:00:01+00:00"
    job = replace(make_job(), uid=uid, status=Status.RUNNING, started_at=at)
    return job.with_step(0, status=Status.RUNNING, started_at=at).ended(Status.CANCELLED, at)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "records").iterdir())


def test_what_was_told_of_a_job_is_known_to_the_next_agent(store, tmp_path, problems):
    store.add(ended_job("u1"))
    assert [job.uid for job in store.untold()] == ["u1"]
    store.told("u1", 2)
    again = JobStore(tmp_path / "records", problems)
    again.load()
    assert [(job.uid, job.told) for job in again.untold()] == [("u1", 2)]
    again.told("u1", 3)
    assert again.untold() == []


def test_a_removed_job_stays_on_disk_until_all_is_told_of_it(store, tmp_path, problems):
    store.add(ended_job("u1"))
    store.remove("one")
    store.add(ended_job("u2"))  # the id is free
    assert files(tmp_path) == ["one.json", "u1.gone"]
    again = JobStore(tmp_path / "records", problems)
    again.load()
    assert [job.uid for job in again.all()] == ["u2"]
    assert [job.uid for job in again.untold()] == ["u1", "u2"]
    again.told("u1", 2)
    assert json.loads((tmp_path / "records/u1.gone").read_text())["told"] == 2
    again.told("u1", 3)
    again.told("nobody", 1)
    assert files(tmp_path) == ["one.json"]


def test_a_job_of_which_all_is_told_leaves_nothing(store, tmp_path):
    store.add(ended_job("u1"))
    store.told("u1", 3)
    store.remove("one")
    assert files(tmp_path) == []


def test_the_newest_of_the_removed_jobs_are_kept(store, tmp_path, monkeypatch):
    monkeypatch.setattr("solarhost.jobs.store.GONE_LIMIT", 2)
    for uid in ("u1", "u2", "u3"):
        store.add(ended_job(uid))
        store.remove("one")
    assert files(tmp_path) == ["u2.gone", "u3.gone"]


def test_what_was_told_while_the_disk_was_full_is_known_while_the_agent_lives(store, tmp_path):
    store.add(ended_job("u1"))
    (tmp_path / "records/.one.json.draft").mkdir()  # no draft can be made
    store.told("u1", 3)
    assert store.untold() == []
