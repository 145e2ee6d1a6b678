"""Pulls beside each other: sharing, queue, cancelling, progress."""

from pathlib import Path

import pytest

from solarhost.errors import NotFound
from tests.process.models_faults import Content, noise, wait_for
from tests.process.models_hub import Hub
from tests.process.models_puller import MakePuller, Puller, workers

MIB = 1 << 20
pytest_plugins = ["tests.models_fixtures"]


def test_requests_for_the_same_model_share_one_download(hub: Hub, puller: Puller) -> None:
    uri = hub.add("org/m", model__gguf=noise(2 * MIB))
    hub.fault("model.gguf", bytes_per_s=4.0 * MIB)
    requests = [puller.in_background(uri) for _ in range(4)]
    for thread, outcome in requests:
        thread.join()
        assert outcome[0]["source_uri"] == uri
    assert len(hub.storage.faults.requests()) == 1
    assert sum(event.phase == "completed" for event in puller.events) == 1


def test_a_shared_failure_reaches_everyone(hub: Hub, puller: Puller) -> None:
    uri = hub.add("org/m", model__gguf=noise(2 * MIB))
    hub.fault("model.gguf", times=9, bytes_per_s=4.0 * MIB, flip_at=9)
    requests = [puller.in_background(uri) for _ in range(3)]
    for thread, outcome in requests:
        thread.join()
        assert outcome[0].code == "model_pull_failed"
    assert sum(event.phase == "failed" for event in puller.events) == 1


def test_other_files_of_a_model_being_pulled_come_after_it(hub: Hub, puller: Puller) -> None:
    uri = hub.add("org/m", a__gguf=noise(2 * MIB), b__gguf=noise(1000, 1))
    hub.fault("a.gguf", bytes_per_s=4.0 * MIB)
    first, _ = puller.in_background(uri, filters=["a*"])
    wait_for(puller.store.pulls)
    second, outcome = puller.in_background(uri, filters=["b*"])
    first.join()
    second.join()
    assert outcome[0]["cached"] is False
    assert {path.name for path in (puller.folder / "hf--org--m").iterdir()} == {"a.gguf", "b.gguf"}


def test_more_pulls_than_allowed_wait_and_say_so(hub: Hub, make: MakePuller) -> None:
    puller = make(max_pulls=2)
    uris = [hub.add(f"org/m{n}", model__gguf=noise(3 * MIB, n)) for n in range(3)]
    hub.fault("model.gguf", times=2, bytes_per_s=2.0 * MIB)
    threads = []
    for number, uri in enumerate(uris):
        threads.append(puller.in_background(uri)[0])
        wait_for(lambda count=number + 1: len(puller.store.pulls()) == count)
    shown = puller.store.pulls()
    assert [pull["queue_position"] for pull in shown] == [None, None, 1]
    assert shown[2]["phase"] == "queued"
    assert len(workers()) <= 2
    wait_for(lambda: [e for e in puller.events if e.source_uri == uris[2] and e.phase == "resolving"])
    for thread in threads:
        thread.join()
    assert sorted(event.source_uri for event in puller.events if event.phase == "completed") == uris


def test_a_cancelled_pull_stops_and_gives_the_disk_back(hub: Hub, puller: Puller) -> None:
    uri = hub.add("org/m", model__gguf=Content(zeros=100 * MIB))
    hub.fault("model.gguf", bytes_per_s=5.0 * MIB)
    thread, outcome = puller.in_background(uri)
    wait_for(lambda: hub.storage.faults.sent() > MIB)
    [pull] = puller.store.pulls()
    assert puller.store.cancel(pull["id"]) == uri
    assert workers() == []
    assert list(puller.folder.iterdir()) == []
    assert puller.store.pulls() == []
    thread.join()
    assert outcome[0].code == "model_pull_failed"
    assert "cancelled" in str(outcome[0])
    assert [event.phase for event in puller.events if event.phase in ("completed", "failed")] == ["failed"]
    with pytest.raises(NotFound):
        puller.store.cancel(pull["id"])
    hub.storage.faults.clear()
    puller.pull(hub.add("org/m", model__gguf=noise(1000)))


def test_a_waiting_pull_can_be_cancelled(hub: Hub, make: MakePuller) -> None:
    puller = make(max_pulls=1)
    slow = hub.add("org/slow", model__gguf=noise(2 * MIB))
    hub.fault("model.gguf", bytes_per_s=2.0 * MIB)
    first, _ = puller.in_background(slow)
    wait_for(puller.store.pulls)
    second, outcome = puller.in_background(hub.add("org/m", other__gguf=noise(1000)))
    wait_for(lambda: len(puller.store.pulls()) == 2)
    puller.store.cancel(puller.store.pulls()[1]["id"])
    second.join()
    assert "cancelled" in str(outcome[0])
    first.join()
    assert hub.storage.faults.requests("other") == []


def test_progress_goes_on_and_never_falls(hub: Hub, puller: Puller) -> None:
    weights = noise(4 * MIB)
    uri = hub.add("org/m", model__gguf=weights)
    hub.fault("model.gguf", bytes_per_s=2.0 * MIB, truncate_at=2 * MIB)
    hub.fault("model.gguf", bytes_per_s=4.0 * MIB, ignore_range=True)
    puller.pull(uri)
    done = [event.bytes_done for event in puller.events]
    assert done == sorted(done)
    assert [event.phase for event in puller.events].count("downloading") >= 4
    assert any(event.speed_bps for event in puller.events if event.phase == "downloading")
    assert {event.bytes_total for event in puller.events if event.phase == "downloading"} == {weights.size}
    assert [event.phase for event in puller.events][-1] == "completed"
    assert sum(event.phase in ("completed", "failed") for event in puller.events) == 1


def test_progress_goes_on_while_nothing_comes(hub: Hub, puller: Puller) -> None:
    uri = hub.add("org/m", model__gguf=noise(2 * MIB))
    hub.fault("model.gguf", stall_at=MIB)
    thread, _ = puller.in_background(uri)
    wait_for(lambda: sum(event.phase == "downloading" for event in puller.events) > 5)
    [pull] = puller.store.pulls()
    puller.store.cancel(pull["id"])
    thread.join()


def test_what_a_pull_waits_for_is_shown_while_it_waits(hub: Hub, make: MakePuller) -> None:
    puller = make(pull_retry_delay_s=60.0)
    hub.add("org/m", model__gguf=noise(1000))
    hub.fault("model.gguf", status=503)
    thread, _ = puller.in_background("huggingface://org/m")
    [pull] = wait_for(lambda: [pull for pull in puller.store.pulls() if pull["trouble"]])
    assert pull["phase"] == "downloading"
    assert pull["trouble"].endswith("answered 503 Service Unavailable; try 2 of 3 in 60 s")
    puller.store.cancel(pull["id"])
    thread.join()


def test_verifying_goes_on_at_its_interval(hub: Hub, make: MakePuller) -> None:
    puller = make(verify_cached="full", pull_progress_interval_s=0.05)
    uri = hub.add("org/m", model__gguf=Content(zeros=300 * MIB))
    puller.pull(uri)
    puller.events.clear()
    assert puller.pull(uri)["cached"] is True
    verifying = [event for event in puller.events if event.phase == "verifying"]
    assert len(verifying) >= 2
    assert [event.phase for event in puller.events][-1] == "completed"


def test_memory_does_not_grow_with_the_file(hub: Hub, puller: Puller) -> None:
    uri = hub.add("org/m", model__gguf=Content(zeros=300 * MIB))
    thread, outcome = puller.in_background(uri)
    [worker] = wait_for(workers)
    peak = 0
    while thread.is_alive():
        try:
            status = Path(f"/proc/{worker.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            break
        peak = max([peak, *(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)])
        thread.join(0.02)
    thread.join()
    assert outcome[0]["cached"] is False
    assert 0 < peak < 100 * 1024  # KiB
