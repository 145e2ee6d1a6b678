import json

import pytest

from solarhost.modelstore.manifest import Entry, FileStamp, Manifest
from solarhost.modelstore.sources import MalformedSource
from solarhost.modelstore.store import ModelStore, NotPulled
from solarhost.problems import Problems
from solarhost.settings import Settings


def entry(slug="repo--a--1", uri="repo://a:1", **changes):
    values = {
        "slug": slug,
        "source_uri": uri,
        "size_bytes": 3,
        "downloaded_at": "2026-01-01T00:00:00+00:00",
        "file_digests": {"m.gguf": "0" * 64},
        "files": {"m.gguf": FileStamp(3, 1)},
    }
    return Entry(**(values | changes))


@pytest.fixture
def store(tmp_path):
    return ModelStore(Settings(models_dir=tmp_path / "models"), lambda event: None, Problems(), lambda: ())


@pytest.fixture
def manifest(store):
    return Manifest(store.folder, Problems())


def put_on_disk(store, manifest, **changes):
    manifest.put(entry(**changes))
    folder = store.folder / entry(**changes).slug
    folder.mkdir()
    (folder / "m.gguf").write_bytes(b"abc")
    return folder


def test_an_entry_comes_back_as_it_was_put(manifest):
    put = entry(file_filters=("*Q4*",), metadata={"a": 1}, revision="abc", digest="sha256:1", name="n")
    manifest.put(put)
    assert manifest.find("repo://a:1") == put
    assert manifest.find_slug("repo--a--1") == put


def test_a_put_replaces_the_entry_of_the_same_uri_only(manifest):
    manifest.put(entry())
    manifest.put(entry("hf--o--m", "huggingface://o/m"))
    manifest.put(entry(size_bytes=7))
    assert {(e.source_uri, e.size_bytes) for e in manifest.entries()} == {
        ("huggingface://o/m", 3),
        ("repo://a:1", 7),
    }
    manifest.remove("repo--a--1")
    assert [e.slug for e in manifest.entries()] == ["hf--o--m"]


def test_what_a_newer_program_wrote_is_kept(manifest):
    manifest.put(entry())
    data = json.loads(manifest.path.read_text())
    data["models"][0]["license"] = "mit"
    data["models"].append({"kind": "from the future"})
    manifest.path.write_text(json.dumps(data))
    manifest.put(entry("hf--o--m", "huggingface://o/m"))
    after = json.loads(manifest.path.read_text())["models"]
    assert {"kind": "from the future"} in after
    assert [model.get("license") for model in after if model.get("slug") == "repo--a--1"] == ["mit"]


def test_a_manifest_without_our_own_keys_is_read(store, manifest):
    store.folder.mkdir()
    manifest.path.write_text(
        json.dumps(
            {
                "models": [
                    {
                        "slug": "hf--o--m",
                        "source_uri": "huggingface://o/m",
                        "path": "/elsewhere/hf--o--m",
                        "size_bytes": 3,
                        "digest": None,
                        "downloaded_at": "2026-01-01T00:00:00+00:00",
                        "metadata": None,
                        "file_digests": None,
                        "file_filters": None,
                    }
                ]
            }
        )
    )
    (store.folder / "hf--o--m").mkdir()
    assert store.resolve("huggingface://o/m") == store.folder / "hf--o--m"
    [model] = store.list()
    assert model["metadata"] == {}
    assert model["path"] == str(store.folder / "hf--o--m")


def test_an_entry_whose_slug_is_no_folder_name_is_never_used(store, manifest):
    store.folder.mkdir()
    raw = entry().as_json(store.folder) | {"slug": "../../etc"}
    manifest.path.write_text(json.dumps({"models": [raw]}))
    assert manifest.entries() == []


def test_a_manifest_that_can_not_be_parsed_is_set_aside_and_reported(tmp_path):
    problems = Problems()
    manifest = Manifest(tmp_path, problems)
    manifest.path.write_text("{broken")
    assert manifest.entries() == []
    [aside] = tmp_path.glob("manifest.json.unreadable-*")
    assert aside.read_text() == "{broken"
    assert aside.name in problems.current()[0]


def test_what_another_program_wrote_is_seen(manifest):
    manifest.put(entry())
    theirs = json.loads(manifest.path.read_text())
    theirs["models"][0]["source_uri"] = "repo://b:1"
    manifest.path.write_text(json.dumps(theirs))
    assert manifest.find("repo://a:1") is None
    assert manifest.find("repo://b:1") == manifest.find_slug("repo--a--1")


def test_of_two_entries_with_one_name_the_first_counts(manifest):
    manifest.put(entry())
    twice = json.loads(manifest.path.read_text())["models"] * 2
    twice[1] = {**twice[1], "size_bytes": 999}
    manifest.path.write_text(json.dumps({"models": twice}))
    assert manifest.find("repo://a:1").size_bytes != 999
    assert len(manifest.entries()) == 2


def test_a_pulled_model_resolves_to_its_folder_or_the_file_in_it(store, manifest):
    folder = put_on_disk(store, manifest)
    assert store.resolve("repo://a:1") == folder
    assert store.resolve("repo://a:1/m.gguf") == folder / "m.gguf"
    with pytest.raises(NotPulled, match=r"no file 'other\.gguf'"):
        store.resolve("repo://a:1/other.gguf")


def test_a_model_that_is_not_on_disk_says_to_pull_it(store, manifest):
    with pytest.raises(NotPulled, match="POST /models/pull"):
        store.resolve("huggingface://o/m")
    manifest.put(entry())  # the folder was emptied since
    with pytest.raises(NotPulled, match="POST /models/pull"):
        store.resolve("repo://a:1")


def test_a_folder_emptied_under_the_running_store_is_noticed(store, manifest):
    folder = put_on_disk(store, manifest)
    assert store.resolve("repo://a:1") == folder
    (folder / "m.gguf").unlink()
    folder.rmdir()
    manifest.path.unlink()
    with pytest.raises(NotPulled):
        store.resolve("repo://a:1")
    assert store.list() == []


def test_a_link_out_of_a_model_is_not_followed(store, manifest, tmp_path):
    folder = put_on_disk(store, manifest)
    (tmp_path / "secret").write_text("s")
    (folder / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(NotPulled):
        store.resolve("repo://a:1/link")


def test_local_sources_stay_inside_the_models_folder(store, tmp_path):
    store.folder.mkdir()
    inside = store.folder / "mine.gguf"
    inside.write_text("m")
    (tmp_path / "outside.gguf").write_text("o")
    (store.folder / "link.gguf").symlink_to(tmp_path / "outside.gguf")
    assert store.resolve("local://mine.gguf") == inside
    assert store.resolve(f"local://{inside}") == inside
    for uri in ("local://../outside.gguf", f"local://{tmp_path}/outside.gguf", "local://link.gguf"):
        with pytest.raises(NotPulled, match="inside"):
            store.resolve(uri)
    with pytest.raises(NotPulled, match="No such file"):
        store.resolve("local://nothing.gguf")
    (tmp_path / "models" / "loop").symlink_to("loop")
    with pytest.raises(NotPulled, match="symbolic links"):
        store.resolve("local://loop")


def test_a_malformed_source_is_told_apart(store):
    with pytest.raises(MalformedSource):
        store.resolve("s3://bucket/model")
