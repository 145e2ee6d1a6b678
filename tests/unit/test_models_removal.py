from pathlib import Path

import pytest

from solarhost.modelstore.manifest import Entry, FileStamp, Manifest
from solarhost.modelstore.removal import ModelInUse
from solarhost.modelstore.store import ModelStore
from solarhost.problems import Problems
from solarhost.settings import Settings

NAMES = ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "b.gguf")


@pytest.fixture
def used():
    return []


@pytest.fixture
def store(tmp_path, used):
    settings = Settings(models_dir=tmp_path / "models")
    folder = settings.models_dir / "hf--o--m"
    folder.mkdir(parents=True)
    for name in NAMES:
        (folder / name).write_text(name)
    entry = Entry(
        slug="hf--o--m",
        source_uri="huggingface://o/m",
        size_bytes=1,
        downloaded_at="2026-01-01T00:00:00+00:00",
        file_filters=("a*", "b*"),
        files={name: FileStamp(len(name), 1) for name in NAMES},
    )
    Manifest(settings.models_dir, Problems()).put(entry)
    return ModelStore(settings, lambda event: None, Problems(), lambda: used)


def test_a_model_in_use_is_not_deleted(store, used):
    folder = store.folder / "hf--o--m"
    for path in (folder / "b.gguf", folder, store.folder):
        used[:] = [path]
        with pytest.raises(ModelInUse, match="stop it first"):
            store.delete("hf--o--m")
    assert len(list(folder.iterdir())) == 3
    assert len(store.list()) == 1


def test_a_model_in_use_through_a_link_is_not_deleted(store, used, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(store.folder)
    used[:] = [link / "hf--o--m" / "b.gguf"]
    with pytest.raises(ModelInUse):
        store.delete("hf--o--m")


def test_files_beside_the_one_in_use_can_be_deleted(store, used):
    used[:] = [store.folder / "hf--o--m" / NAMES[0], Path("/elsewhere/model.gguf")]
    assert store.delete("hf--o--m", ["b*"])["removed"] == ["b.gguf"]


def test_the_parts_of_a_split_model_are_in_use_together(store, used):
    used[:] = [store.folder / "hf--o--m" / NAMES[0]]
    with pytest.raises(ModelInUse):
        store.delete("hf--o--m", ["*-00002-of-*"])


def test_what_was_deleted_is_no_longer_covered(store):
    store.delete("hf--o--m", ["a-00002*"])
    assert store.list()[0]["file_filters"] == ["a-00001-of-00002.gguf", "b*"]


def test_deleting_the_last_files_removes_the_model(store):
    assert store.delete("hf--o--m", ["*.gguf"])["remaining"] == 0
    assert store.list() == []
    assert [path.name for path in store.folder.iterdir()] == ["manifest.json"]


def test_a_manifest_that_can_not_be_written_leaves_the_files(store):
    draft = store.folder / ".manifest.json.draft"
    draft.mkdir()  # in the way of the new manifest
    with pytest.raises(Exception, match="nothing of hf--o--m was deleted"):
        store.delete("hf--o--m", ["b*"])
    with pytest.raises(Exception, match="nothing of hf--o--m was deleted"):
        store.delete("hf--o--m")
    assert sorted(path.name for path in (store.folder / "hf--o--m").iterdir()) == sorted(NAMES)
    assert len(store.list()) == 1
