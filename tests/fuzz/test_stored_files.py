"""Files that people and other programs edit: whatever is in them, nothing is lost and the agent runs."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solarhost.backends.huggingface import huggingface_backends
from solarhost.backends.llamacpp import LlamaCpp
from solarhost.backends.registry import Backends
from solarhost.files import read_json
from solarhost.instances.store import InstanceStore
from solarhost.instances.view import as_json, flat
from solarhost.jobs.store import JobStore
from solarhost.logs.ledger import Ledger
from solarhost.modelstore.cache import is_intact
from solarhost.modelstore.manifest import Manifest
from solarhost.problems import Problems
from solarhost.settings import Settings
from tests.fuzz.strategies import any_json, mutated

BACKENDS = Backends([LlamaCpp(""), *huggingface_backends(Settings())])
INSTANCE = {
    "id": "2c7e-1",
    "config": {"backend_type": "llamacpp", "alias": "a", "model": "/m.gguf", "api_key": "k", "new": [1, {}]},
    "created_at": "2026-01-01T00:00:00+00:00",
    "status": "running",
    "reason": "ready",
    "error_message": None,
    "priority": "staging",
    "gpu_ids": [0, "GPU-1"],
    "vram_gb": 1.5,
    "run": 2,
    "port": 3500,
    "process": {"pid": 4711, "started": "boot:1", "digest": "d"},
    "log_path": "logs/x.log",
    "signal": None,
}
INSTANCES = {"version": 1, "instances": [INSTANCE, {**INSTANCE, "id": "other"}, {"backend": "of tomorrow"}]}
MODEL = {
    "slug": "hf--org--m",
    "source_uri": "huggingface://org/m",
    "path": "/models/hf--org--m",
    "size_bytes": 5,
    "downloaded_at": "2026-01-01T00:00:00+00:00",
    "metadata": {"a": 1},
    "file_digests": {"m.gguf": "0" * 64},
    "file_filters": ["*.gguf"],
    "files": {"m.gguf": {"size_bytes": 5, "mtime_ns": 1}},
    "of tomorrow": [1],
}
MODELS = {"models": [MODEL, {**MODEL, "slug": "repo--m--v1", "source_uri": "repo://m:v1"}]}
JOB = {
    "uid": "u",
    "definition": {
        "job_id": "one",
        "name": "n",
        "steps": [{"name": "s", "image": "i", "environment": {"A": "b"}, "gpu": {"count": 1}}],
        "retention_hours": 1.0,
    },
    "created_at": "2026-01-01T00:00:00+00:00",
    "steps": [{"name": "s", "status": "completed", "started_at": "2026-01-01T00:00:00+00:00"}],
    "status": "completed",
    "finished_at": "2026-01-01T00:00:00+00:00",
}
LEDGER = {"file": "a_b_1.log", "offset": 5, "seq": 2, "cuts": [1], "runs": {"1": "f"}, "secrets": ["k"]}


def text_of(document: Any) -> bytes:
    return json.dumps(document).encode()


def cut_off(document: Any) -> list[bytes]:
    """Its text, ending anywhere."""
    text = text_of(document)
    return [text[:size] for size in range(len(text))]


def load_instances(folder: Path, content: bytes) -> InstanceStore:
    (folder / "config.json").write_bytes(content)
    store = InstanceStore(folder / "config.json", Problems(), lambda config: BACKENDS.check(config)[0])
    store.load()
    return store


def check_instances(content: bytes) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        store = load_instances(folder, content)
        for record in store.all():
            backend = BACKENDS.of(record.config)
            json.dumps([as_json(record, backend), flat(record, backend)])
            assert record.process is None or record.process.alive() in (True, False)
            store.put(record)
        kept = [path.read_bytes() for path in folder.glob("config.json.unreadable-*")]
        if kept:
            assert kept == [content]
            return
        before, after = json.loads(content)["instances"], read_json(folder / "config.json")["instances"]
        ids = {record.id for record in store.all()}
        lost = [
            entry for entry in before
            if entry not in after and not (isinstance(entry, dict) and entry.get("id") in ids)
        ]  # fmt: skip
        assert text_of(lost) == b"[]"
        again = load_instances(folder, (folder / "config.json").read_bytes())
        assert {record.id: record for record in again.all()} == {record.id: record for record in store.all()}


@given(mutated(INSTANCES).map(text_of))
def test_an_almost_right_config_json(content: bytes) -> None:
    check_instances(content)


@given(st.binary(max_size=100) | any_json.map(text_of) | st.sampled_from(cut_off(INSTANCES)))
def test_any_config_json(content: bytes) -> None:
    check_instances(content)


def check_manifest(content: bytes) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "manifest.json").write_bytes(content)
        manifest = Manifest(folder, Problems())
        for entry in manifest.entries():
            json.dumps(entry.as_json(folder))
            assert (folder / entry.slug).parent == folder
            for file in {*entry.files, *entry.file_digests}:
                assert (folder / entry.slug / file).resolve().is_relative_to((folder / entry.slug).resolve())
            is_intact(folder / entry.slug, entry)
        kept = [path.read_bytes() for path in folder.glob("manifest.json.unreadable-*")]
        if kept:
            assert kept == [content]
            return
        known = manifest.entries()
        for entry in known:
            manifest.put(entry)
        after = manifest.entries()
        assert {entry.source_uri for entry in after} == {entry.source_uri for entry in known}


@given(mutated(MODELS).map(text_of))
def test_an_almost_right_manifest(content: bytes) -> None:
    check_manifest(content)


@given(st.binary(max_size=100) | any_json.map(text_of) | st.sampled_from(cut_off(MODELS)))
def test_any_manifest(content: bytes) -> None:
    check_manifest(content)


def check_job(content: bytes) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "one.json").write_bytes(content)
        store = JobStore(folder, Problems())
        store.load()
        for job in store.all():
            json.dumps([job.as_json(), job.happened, job.is_told, [step.duration_s for step in job.steps]])
            assert job.retention_deadline is None or job.retention_deadline.tzinfo
        kept = [path.read_bytes() for path in folder.glob("one.json.unreadable-*")]
        assert bool(kept) != bool(store.all())
        assert kept in ([], [content])


@given(mutated(JOB).map(text_of))
def test_an_almost_right_job_record(content: bytes) -> None:
    check_job(content)


@given(st.binary(max_size=100) | any_json.map(text_of) | st.sampled_from(cut_off(JOB)))
def test_any_job_record(content: bytes) -> None:
    check_job(content)


@given(
    mutated(LEDGER).map(text_of) | st.binary(max_size=100) | any_json.map(text_of)
    | st.sampled_from(cut_off(LEDGER))
)  # fmt: skip
def test_any_place_in_a_log(content: bytes) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "a1.lines.json").write_bytes(content)
        ledger = Ledger(folder, "a1", Problems())
        assert ledger.first_failed is None or isinstance(ledger.first_failed, str)
        ledger.begin(1, "file", ledger.checkpoint.seq, {"file"})
        ledger.mask(["secret"])
        again = Ledger(folder, "a1", Problems())
        assert (again.file_of(1), again.secrets[-1]) == ("file", "secret")


def test_a_folder_in_the_place_of_a_file_stays_there(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    store = InstanceStore(tmp_path / "config.json", Problems(), lambda config: config)
    with pytest.raises(Exception, match="can't be read: Is a directory"):
        store.load()
    assert (tmp_path / "config.json").is_dir()
