"""A step's log on a disk that is full, and after an agent that was killed."""

import subprocess

import pytest

from solarhost.containers.output import Chunk
from solarhost.jobs.steplog import StepLog, checkpoint_path, stored_recent
from solarhost.logs.redaction import Redactor
from tests.jobs_fixtures import Heard

NOW = "2026-01-01T00:00:00.000000+00:00"


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def small_disk(tmp_path):
    """A folder with 256 KiB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def open_log(path, heard: Heard) -> StepLog:
    log = StepLog("job", "step", 0, path, Redactor([]), heard.publish)
    log.open()
    return log


def out(text: str) -> list[Chunk]:
    return [Chunk("stdout", NOW, text.encode())]


def test_lines_that_a_full_disk_refuses_are_sent_and_counted(small_disk, heard):
    filler = small_disk / "filler"
    log = open_log(small_disk / "step.log", heard)
    log.add(out("first\n"))
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(b"x" * 4096)
    for _ in range(10):
        log.add(out("y" * 999 + "\n"))
    written = (small_disk / "step.log").read_text()
    assert written.endswith("\n")  # no half line
    kept = written.count("\n")
    filler.unlink()
    log.add(out("last\n"))
    log.complete()
    lines = (small_disk / "step.log").read_text().splitlines()
    assert lines[kept:] == [f"[{11 - kept} lines could not be written here]", "last"]
    assert len(heard.entries("job")) == 12
    log.close()


def test_a_log_goes_on_at_its_checkpoint(tmp_path, heard):
    path = tmp_path / "step.log"
    first = open_log(path, heard)
    first.add(out("1\n2\nhal"))
    first.close()
    with path.open("a") as file:
        file.write("written after the checkpoint\n")
    second = open_log(path, heard)
    second.rewind()
    second.add(out("1\n2\nhalf\n"))
    second.add(out("4\n"))
    assert second.complete() == 5
    assert path.read_text() == "1\n2\nhalf\n4\n"
    assert [entry["seq"] for entry in heard.entries("job")] == [1, 2, 3, 4]
    assert [entry["line"] for entry in stored_recent(path)] == ["1", "2", "half", "4"]
    third = open_log(path, heard)
    assert third.complete() == 5, "it is complete already"
    assert len(heard.entries("job")) == 4


@pytest.mark.parametrize("damage", ["missing", "torn", "ahead of the file"])
def test_without_a_checkpoint_that_fits_the_log_begins_anew(tmp_path, heard, damage):
    path = tmp_path / "step.log"
    first = open_log(path, heard)
    first.add(out("1\n2\n"))
    first.close()
    if damage == "missing":
        checkpoint_path(path).unlink()
    elif damage == "torn":
        checkpoint_path(path).write_text('{"size": 4')
    else:
        path.write_text("1")  # the machine went down before all bytes were on disk
    second = open_log(path, heard)
    second.rewind()
    second.add(out("1\n2\n3\n"))
    assert path.read_text() == "1\n2\n3\n"
    second.close()
