"""Pulls from the hub: the real client against a hub on loopback."""

import os
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import snapshot_download

from solarhost.modelstore import download
from solarhost.modelstore.hub import Hub as HubRemote
from solarhost.modelstore.pull import PullRequest
from solarhost.modelstore.pulls import PullService
from solarhost.modelstore.transport import Retries
from tests.process.models_faults import Content, noise, wait_for
from tests.process.models_hub import Hub
from tests.process.models_puller import MakePuller, Puller, bytes_of, workers

MIB = 1 << 20
pytest_plugins = ["tests.models_fixtures"]


def test_the_stand_in_serves_the_real_client(hub: Hub, tmp_path: Path) -> None:
    weights, config = noise(300_000), Content(b'{"a": 1}')
    hub.add("org/model", model__gguf=weights, config__json=config)
    got = snapshot_download("org/model", local_dir=tmp_path / "got", endpoint=hub.url, token=False)
    assert Path(got, "model.gguf").read_bytes() == bytes_of(weights)
    assert Path(got, "config.json").read_bytes() == b'{"a": 1}'


def test_the_library_itself_resumes_nothing(hub: Hub, tmp_path: Path) -> None:
    """Why ranges are fetched by ourselves. When this fails, the library has learned it."""
    hub.add("org/model", model__gguf=noise(3 * MIB))
    hub.fault("model.gguf", reset_at=2 * MIB)
    with pytest.raises(Exception, match="reset"):
        snapshot_download("org/model", local_dir=tmp_path / "got", endpoint=hub.url, token=False)
    hub.storage.faults.clear()
    snapshot_download("org/model", local_dir=tmp_path / "got", endpoint=hub.url, token=False)
    assert [seen.headers.get("range") for seen in hub.storage.faults.requests()] == [None]


def test_a_model_is_pulled_verified_and_recorded(hub: Hub, puller: Puller) -> None:
    weights, config = noise(700_000), Content(b'{"a": 1}')
    uri = hub.add("org/model", model__gguf=weights, config__json=config)
    answer = puller.pull(uri)
    folder = puller.folder / "hf--org--model"
    assert answer == {"path": str(folder), "cached": False, "source_uri": uri}
    assert (folder / "model.gguf").read_bytes() == bytes_of(weights)
    assert puller.on_disk() == {"manifest.json", "hf--org--model/model.gguf", "hf--org--model/config.json"}
    [model] = puller.store.list()
    assert model["size_bytes"] == weights.size + config.size
    assert model["files"] == [
        {"name": "config.json", "size_bytes": config.size},
        {"name": "model.gguf", "size_bytes": weights.size},
    ]
    assert puller.store.resolve(uri) == folder
    phases = [event.phase for event in puller.events]
    assert phases[0] == "resolving"
    assert phases[-3:] == ["verifying", "finalizing", "completed"]
    assert puller.events[-1].bytes_done == puller.events[-1].bytes_total == weights.size + config.size


def test_a_second_pull_asks_nobody(hub: Hub, puller: Puller) -> None:
    uri = hub.add("org/model", model__gguf=noise(1000))
    puller.pull(uri)
    hub.faults.clear()
    assert puller.pull(uri)["cached"] is True
    assert hub.faults.seen == []


def test_what_was_emptied_under_the_running_store_is_pulled_again(hub: Hub, puller: Puller) -> None:
    uri = hub.add("org/model", model__gguf=noise(1000), other__gguf=noise(900, seed=1))
    puller.pull(uri)
    (puller.folder / "hf--org--model" / "model.gguf").unlink()
    hub.storage.faults.clear()
    assert puller.pull(uri)["cached"] is False
    assert [seen.path.split("/")[1] for seen in hub.storage.faults.requests()] == ["model.gguf"]
    for path in (puller.folder / "hf--org--model").iterdir():
        path.unlink()
    (puller.folder / "hf--org--model").rmdir()
    (puller.folder / "manifest.json").unlink()
    assert puller.pull(uri)["cached"] is False
    assert puller.store.resolve(uri).is_dir()


# Filters


def test_a_model_deleted_before_its_pull_is_answered_is_not_called_unknown(
    hub: Hub, puller: Puller, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = hub.add("org/model", model__gguf=noise(1000))
    puller.pull(uri)
    cached = PullService.pull

    def overtaken(service: PullService, request: PullRequest) -> bool:
        answer = cached(service, request)
        puller.store.delete("hf--org--model")
        return answer

    monkeypatch.setattr(PullService, "pull", overtaken)
    for changes in ({}, {"backend_type": "llamacpp"}):
        error = puller.failure(uri, **changes)
        assert (error.code, error.status) == ("model_pull_failed", 500)
        assert "deleted" in str(error)


def test_filters_choose_what_comes_and_later_ones_add_to_it(hub: Hub, puller: Puller) -> None:
    uri = hub.add("org/m", a_Q4__gguf=noise(1000), a_Q8__gguf=noise(2000, 1), mmproj__gguf=noise(500, 2))
    puller.pull(uri, filters=["*Q4*", "mmproj*"])
    assert puller.events[-1].bytes_total == 1500
    folder = puller.folder / "hf--org--m"
    assert {path.name for path in folder.iterdir()} == {"a_Q4.gguf", "mmproj.gguf"}
    (folder / "notes.md").write_text("mine")
    first = (folder / "a_Q4.gguf").stat()
    hub.storage.faults.clear()
    assert puller.pull(uri, filters=["*Q4*"])["cached"] is True
    assert puller.pull(uri, filters=["*Q8*"])["cached"] is False
    assert {path.name for path in folder.iterdir()} == {"a_Q4.gguf", "a_Q8.gguf", "mmproj.gguf", "notes.md"}
    assert (folder / "a_Q4.gguf").stat().st_ino == first.st_ino
    assert len(hub.storage.faults.requests()) == 1
    assert puller.store.list()[0]["file_filters"] == ["*Q4*", "*Q8*", "mmproj*"]


def test_filters_that_match_nothing_are_an_error(hub: Hub, puller: Puller) -> None:
    uri = hub.add("org/m", a__gguf=noise(1000))
    assert puller.failure(uri, filters=["*Q9*"]).code == "not_found"
    assert puller.on_disk() == set()


def test_a_model_without_gguf_is_no_model_for_llamacpp(hub: Hub, puller: Puller) -> None:
    uri = hub.add("org/m", model__safetensors=noise(1000))
    assert puller.failure(uri, backend_type="llamacpp").code == "not_found"
    assert hub.storage.faults.seen == []
    puller.pull(uri)
    assert puller.failure(uri, backend_type="llamacpp").code == "not_found"


# Faults that pass


@pytest.mark.parametrize(
    "fault",
    [
        {"stall_at": MIB},
        {"reset_at": MIB},
        {"status": 429, "headers": {"Retry-After": "1"}},
        {"status": 404},  # of the storage, not of the hub
    ],
    ids=str,
)
def test_a_fault_that_passes_is_overcome(hub: Hub, make: MakePuller, fault: dict[str, Any]) -> None:
    puller = make(pull_stall_timeout_s=1.0)
    weights = noise(3 * MIB)
    uri = hub.add("org/m", model__gguf=weights)
    hub.fault("model.gguf", **fault)
    puller.pull(uri)
    assert (puller.folder / "hf--org--m" / "model.gguf").read_bytes() == bytes_of(weights)
    ranges = [seen.headers.get("range") for seen in hub.storage.faults.requests()]
    assert len(ranges) == 2
    if "stall_at" in fault:  # a reset may take what was sent with it
        start = int(str(ranges[1]).removeprefix("bytes=").partition("-")[0])
        assert 0 < start <= MIB
    assert sum(event.phase in ("completed", "failed") for event in puller.events) == 1


def test_a_server_that_ignores_ranges_sends_it_all_again(hub: Hub, puller: Puller) -> None:
    weights = noise(3 * MIB)
    uri = hub.add("org/m", model__gguf=weights)
    hub.fault("model.gguf", truncate_at=2 * MIB)
    hub.fault("model.gguf", ignore_range=True)
    puller.pull(uri)
    assert (puller.folder / "hf--org--m" / "model.gguf").read_bytes() == bytes_of(weights)
    done = [event.bytes_done for event in puller.events]
    assert done == sorted(done)


def test_an_address_that_expired_is_asked_for_again(hub: Hub, puller: Puller) -> None:
    weights = noise(MIB)
    uri = hub.add("org/m", model__gguf=weights)
    hub.expired = 2
    puller.pull(uri)
    assert (puller.folder / "hf--org--m" / "model.gguf").read_bytes() == bytes_of(weights)


def test_bytes_flipped_before_a_break_are_fetched_again(hub: Hub, puller: Puller) -> None:
    weights = noise(2 * MIB)
    uri = hub.add("org/m", model__gguf=weights)
    hub.fault("model.gguf", truncate_at=MIB + 1000, flip_at=5)
    puller.pull(uri)
    assert (puller.folder / "hf--org--m" / "model.gguf").read_bytes() == bytes_of(weights)


def test_a_busy_hub_is_asked_again(hub: Hub, puller: Puller) -> None:
    uri = hub.add("org/m", model__gguf=noise(1000))
    hub.fault("/api/models", status=429, headers={"Retry-After": "1"})
    hub.fault("/api/models", status=502)
    puller.pull(uri)
    assert len(hub.faults.requests("/api/models")) == 3


# Faults that stay


@pytest.mark.parametrize(
    ("where", "fault", "code", "status"),
    [
        ("/api/models", {"status": 401}, "auth_failed", 401),
        ("/api/models", {"status": 404}, "not_found", 404),
        ("/api/models", {"status": 500}, "source_unreachable", 502),
        ("/api/models", {"stall_at": 0}, "source_unreachable", 502),
        ("/resolve/", {"status": 403}, "auth_failed", 401),
        ("/resolve/", {"status": 429}, "source_unreachable", 502),
        ("/resolve/", {"status": 418}, "model_pull_failed", 502),
        ("model.gguf", {"status": 403}, "source_unreachable", 502),
        ("model.gguf", {"reset_at": 0}, "source_unreachable", 502),
        ("model.gguf", {"flip_at": 77}, "model_pull_failed", 502),
        ("model.gguf", {"reset_at": 500_000, "ignore_range": True}, "source_unreachable", 502),
    ],
    ids=str,
)
def test_a_fault_that_stays_fails_and_leaves_the_disk_as_it_was(
    hub: Hub, make: MakePuller, where: str, fault: dict[str, Any], code: str, status: int
) -> None:
    puller = make(pull_stall_timeout_s=0.5, pull_retries=1)
    uri = hub.add("org/m", model__gguf=noise(MIB))
    hub.fault(where, times=99, **fault)
    error = puller.failure(uri)
    assert (error.code, error.status) == (code, status)
    assert error.body() == {
        "error": code,
        "detail": str(error),
        "source_uri": uri,
        "status_code": status,
    }
    assert list(puller.folder.iterdir()) == []
    assert [event.phase for event in puller.events if event.phase in ("completed", "failed")] == ["failed"]
    assert puller.store.pulls() == []


def test_a_hub_that_is_not_there_is_unreachable(hub: Hub, make: MakePuller) -> None:
    error = make(hf_endpoint="http://127.0.0.1:9", pull_retries=0).failure("huggingface://org/m")
    assert error.code == "source_unreachable"
    assert "refused" in str(error)


def test_a_gated_model_needs_its_token(hub: Hub, make: MakePuller) -> None:
    uri = hub.add("org/m", model__gguf=noise(1000))
    hub.gated.add("org/m")
    error = make().failure(uri)
    assert (error.code, error.status) == ("auth_failed", 401)
    assert "gated" in str(error)
    wrong = make(hf_token="hf_wrong").failure(uri)
    assert wrong.code == "auth_failed"
    assert "hf_wrong" not in str(wrong)
    make(hf_token=hub.token).pull(uri)


def test_keys_go_to_the_hub_only(hub: Hub, make: MakePuller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", hub.token)
    puller = make(hf_token=hub.token)
    uri = hub.add("org/m", model__gguf=noise(2 * MIB))
    hub.fault("model.gguf", bytes_per_s=float(MIB))
    thread, _ = puller.in_background(uri)
    [worker] = wait_for(workers)
    wait_for(lambda: hub.storage.faults.sent() > 0)
    assert hub.token not in " ".join(worker.cmdline())
    assert hub.token not in " ".join(worker.environ().values())
    thread.join()
    assert all(seen.headers.get("authorization") == f"Bearer {hub.token}" for seen in hub.faults.requests())
    assert all("authorization" not in seen.headers for seen in hub.storage.faults.requests())


def test_a_file_name_that_leaves_the_folder_is_refused(hub: Hub, puller: Puller) -> None:
    hub.repos["org/m"] = {"good.gguf": noise(100), "a/../../evil.gguf": noise(100, 1)}
    error = puller.failure("huggingface://org/m")
    assert (error.code, error.status) == ("model_pull_failed", 502)
    assert hub.storage.faults.seen == []
    assert list(puller.folder.iterdir()) == []


def test_a_link_in_a_repository_comes_as_the_file_that_git_stores(hub: Hub, puller: Puller) -> None:
    hub.repos["org/m"] = {"good.gguf": noise(100), "link.txt": Content(b"../../../etc/passwd")}
    puller.pull("huggingface://org/m")
    link = puller.folder / "hf--org--m" / "link.txt"
    assert not link.is_symlink()
    assert link.read_text() == "../../../etc/passwd"


def test_a_large_file_comes_in_segments(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's delivery network ends answers beyond 50 GB; here beyond 1 MiB."""
    monkeypatch.setattr(download, "SEGMENT_BYTES", MIB)
    weights = noise(2 * MIB + 5)
    hub.add("org/m", model__gguf=weights)
    remote = HubRemote("org/m", endpoint=hub.url, token="", stall_s=5)
    [file] = remote.listing().files
    retries = Retries(0, 0, lambda trouble: None)
    part = tmp_path / "part"
    download.Download(remote, file, part, stall_s=5, retries=retries, on_bytes=lambda done: None).run()
    assert part.read_bytes() == bytes_of(weights)
    ranges = [seen.headers["range"] for seen in hub.storage.faults.requests()]
    assert ranges == ["bytes=0-1048575", "bytes=1048576-2097151", "bytes=2097152-2097156"]


# The previous version


def test_a_manifest_that_can_not_be_written_leaves_the_previous_version(hub: Hub, puller: Puller) -> None:
    uri = hub.add("org/m", model__gguf=noise(1000))
    puller.pull(uri)
    path = puller.folder / "hf--org--m" / "model.gguf"
    path.write_bytes(b"previous")
    (puller.folder / ".manifest.json.draft").mkdir()  # in the way
    assert puller.failure(uri).code == "model_pull_failed"
    assert path.read_bytes() == b"previous"
    assert not (puller.folder / ".staging").exists()
    (puller.folder / ".manifest.json.draft").rmdir()
    puller.pull(uri)
    assert path.read_bytes() == bytes_of(noise(1000))


def test_a_pull_that_fails_leaves_the_previous_version(hub: Hub, make: MakePuller) -> None:
    puller = make(pull_retries=0)
    uri = hub.add("org/m", model__gguf=noise(1000))
    puller.pull(uri)
    before = (puller.folder / "manifest.json").read_bytes()
    hub.add("org/m", model__gguf=noise(1000), more__gguf=noise(2000, 1))
    hub.fault("more.gguf", times=9, status=500)
    path = puller.folder / "hf--org--m" / "model.gguf"
    os.utime(path, (1, 1))  # so that the model is looked at again
    (path.parent / "mine.txt").write_text("kept")
    assert puller.pull(uri)["cached"] is True  # the content is right
    path.write_bytes(b"spoiled")
    assert puller.failure(uri).code == "source_unreachable"
    assert path.read_bytes() == b"spoiled"
    assert (path.parent / "mine.txt").read_text() == "kept"
    assert (puller.folder / "manifest.json").read_bytes() != before  # the new time was noted
    hub.storage.faults.clear()
    assert puller.pull(uri)["cached"] is False
    assert {p.name for p in path.parent.iterdir()} == {"model.gguf", "more.gguf", "mine.txt"}


def test_a_touched_file_is_read_and_not_fetched(hub: Hub, puller: Puller) -> None:
    uri = hub.add("org/m", model__gguf=noise(1000), config__json=Content(b"{}"))
    puller.pull(uri)
    os.utime(puller.folder / "hf--org--m" / "model.gguf", (1, 1))
    hub.faults.clear()
    assert puller.pull(uri)["cached"] is True
    assert hub.faults.seen == []
    assert workers() == []


def test_full_verification_finds_what_size_and_time_hide(hub: Hub, make: MakePuller) -> None:
    uri = hub.add("org/m", model__gguf=noise(1000))
    quick, full = make(), make(verify_cached="full")
    quick.pull(uri)
    path = quick.folder / "hf--org--m" / "model.gguf"
    status = path.stat()
    path.write_bytes(bytes(1000))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert quick.pull(uri)["cached"] is True
    assert full.pull(uri)["cached"] is False
    assert path.read_bytes() == bytes_of(noise(1000))
    hub.faults.clear()
    assert full.pull(uri)["cached"] is True
    assert hub.faults.seen == []
    assert "verifying" in [event.phase for event in full.events]


def test_a_link_in_the_model_folder_is_replaced_and_not_followed(
    hub: Hub, puller: Puller, tmp_path: Path
) -> None:
    uri = hub.add("org/m", model__gguf=noise(1000))
    outside = tmp_path / "outside"
    outside.write_bytes(bytes_of(noise(1000)))
    folder = puller.folder / "hf--org--m"
    folder.mkdir(parents=True)
    (folder / "model.gguf").symlink_to(outside)
    puller.pull(uri)
    assert not (folder / "model.gguf").is_symlink()
    assert outside.exists()


def test_two_names_of_the_same_bytes_are_downloaded_once(hub: Hub, puller: Puller) -> None:
    uri = hub.add("org/m", a__gguf=noise(1000), b__gguf=noise(1000))
    puller.pull(uri)
    assert {path.name for path in (puller.folder / "hf--org--m").iterdir()} == {"a.gguf", "b.gguf"}
    assert len(hub.storage.faults.requests()) == 1
