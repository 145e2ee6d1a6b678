"""An agent that is killed, at each point of a job: the next one goes on, and nothing is lost or doubled."""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.agent import ROOT, wait_until
from tests.docker_engine import DockerEngine
from tests.jobs_fixtures import body, shell, step, waiting

TERMINAL = ("step_completed", "step_failed", "job_completed", "job_failed", "job_cancelled")


class Lives:
    """Agents of one folder, one after another."""

    def __init__(self, folder: Path, engine: DockerEngine):
        self.folder = folder / "jobs"
        self._events = folder / "events"
        self._engine = engine
        self._output = (folder / "agents.log").open("ab")

    def spawn(self, *options: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "tests.jobs_driver"]
        words += [str(self.folder), self._engine.address, str(self._events), *options]
        return subprocess.Popen(words, cwd=ROOT, stdout=self._output, stderr=self._output)

    def dies(self, point: str, *options: str) -> None:
        """One that is killed at a point, which it has to reach."""
        assert self.spawn("--die", point, *options).wait(60) == -9, f"{point} was not reached"

    def ends(self, *options: str) -> None:
        """One that sees all jobs to their end."""
        assert self.spawn(*options).wait(60) == 0

    def said(self) -> list[dict[str, Any]]:
        """What was published; not what is being written right now, or was when its agent died."""
        if not self._events.exists():
            return []
        said = []
        for line in self._events.read_text().splitlines():
            with suppress(json.JSONDecodeError):
                said.append(json.loads(line))
        return said

    def events(self) -> list[dict[str, Any]]:
        return [one for one in self.said() if "event" in one]

    def terminal_events(self) -> list[str]:
        """Without those that came again, the same to the letter."""
        events = self.events()
        return [
            " ".join([one["event"], one["job_id"], *([one["step_name"]] if "step_name" in one else [])])
            for at, one in enumerate(events)
            if one["event"] in TERMINAL and one not in events[:at]
        ]

    def repeated(self) -> int:
        """How many events came again."""
        events = self.events()
        return sum(one in events[:at] for at, one in enumerate(events))

    def markers(self) -> list[tuple[str, int]]:
        """Ends of step logs: name and exit code."""
        return [(one["step_name"], one["exit_code"]) for one in self.said() if one.get("completed")]

    def record(self, job_id: str) -> dict[str, Any]:
        return json.loads((self.folder / f".records/{job_id}.json").read_text())

    def log(self, job_id: str, step_name: str) -> list[str]:
        return (self.folder / job_id / "logs" / f"{step_name}.log").read_text().splitlines()


@pytest.fixture
def lives(tmp_path: Path, docker_engine: DockerEngine):
    yield Lives(tmp_path, docker_engine)
    assert docker_engine.clear() == []


def test_killed_at_every_point_of_a_job_that_goes_well(lives: Lives):
    pipeline = body("job", shell("a", "echo a1; sleep 1; echo a2"), step("b", "echo b"), step("c", "echo c"))
    lives.dies("after:JobStore.add:1", "--submit", json.dumps(pipeline))
    assert lives.record("job")["status"] == "pending"
    lives.dies("on:job_started:1")
    lives.dies("before:Engine.create:1")
    lives.dies("after:Engine.create:1")  # before the record knows of it
    assert lives.record("job")["steps"][0]["container_id"] is None
    lives.dies("before:Engine.start:1")  # created, not started
    lives.dies("after:Engine.start:1")
    lives.dies("after:StepLog.complete:1")  # ended, not recorded
    lives.dies("on:step_completed:1")  # between two steps, the container still there
    lives.dies("before:Engine.remove:1")  # cleaning up after the second
    lives.dies("on:step_completed:1")  # the third: the job itself has not ended
    lives.ends()
    assert lives.terminal_events() == [
        "step_completed job a",
        "step_completed job b",
        "step_completed job c",
        "job_completed job",
    ]
    assert lives.repeated() == 3  # one for each death between control's having it and our knowing
    assert lives.markers() == [("a", 0), ("b", 0), ("c", 0)], "each once"
    assert lives.log("job", "a") == ["a1", "a2"]
    assert lives.log("job", "b") == ["b"]
    assert lives.log("job", "c") == ["c"]
    assert [one["exit_code"] for one in lives.record("job")["steps"]] == [0, 0, 0]


def test_killed_after_every_change_of_a_record_before_it_could_be_told(lives: Lives):
    lives.dies("after:JobStore.update:1", "--submit", json.dumps(body("job", step("a", "echo a"))))
    changes = ["step a begins", "its container", "its end", "the end of the job"]
    for _ in changes:
        lives.dies("after:JobStore.update:1")
    lives.ends()
    assert lives.repeated() == 0
    assert [one["event"] for one in lives.events()] == [
        "job_started",
        "step_started",
        "step_completed",
        "job_completed",
    ]


def test_what_happened_while_control_was_away_is_told_by_a_later_agent(lives: Lives):
    steps = step("a", "echo a"), shell("b", "exit 3")
    lives.ends("--away", "--submit", json.dumps(body("job", *steps)))
    lives.dies("after:Engine.start:1", "--away", "--submit", json.dumps(body("other", waiting("one"))))
    lives.ends("--away", "--cancel", "other")
    assert lives.events() == []
    lives.dies("on:step_started:2")
    lives.ends()
    lives.ends()
    assert lives.terminal_events() == [
        "step_completed job a",
        "step_failed job b",
        "job_failed job",
        "job_cancelled other",
    ]
    assert lives.repeated() == 1
    assert lives.markers() == [("a", 0), ("b", 3), ("one", 0)], "each once"
    assert [path.name for path in (lives.folder / ".records").iterdir()] == ["job.json"]


def test_killed_again_and_again_while_a_step_prints(lives: Lives):
    script = (
        "i=0; while [ $i -lt 4000 ]; do i=$((i+1)); echo $i; echo e$i >&2; done; sleep 2; echo end; exit 4"
    )
    job = body("printer", shell("prints", script), step("never", "true"))
    agent = lives.spawn("--submit", json.dumps(job))
    for lines in (1, 2000, 6000):
        wait_until(lambda lines=lines: len(lives.said()) > lines, 60, f"{lines} lines")
        agent.kill()
        agent.wait()
        agent = lives.spawn()
    assert agent.wait(60) == 0
    log = lives.log("printer", "prints")
    assert [line for line in log if line[0] != "e" or line == "end"] == [*map(str, range(1, 4001)), "end"]
    assert [line for line in log if line[0] == "e" and line != "end"] == [f"e{i}" for i in range(1, 4001)]
    entries = [one for one in lives.said() if "line" in one]
    assert sorted({entry["seq"] for entry in entries}) == list(range(1, 8003))  # none is missing
    assert entries[-1]["completed"] is True
    assert lives.terminal_events() == ["step_failed printer prints", "job_failed printer"]
    step_record = lives.record("printer")["steps"][0]
    assert (step_record["exit_code"], step_record["error_message"].splitlines()[-1]) == (4, "e4000")


@pytest.mark.parametrize("point", ["before:Engine.stop:1", "before:Workspaces.remove:1"])
def test_killed_while_it_cancels(lives: Lives, point: str):
    lives.dies("after:Engine.start:1", "--submit", json.dumps(body("job", waiting("one"))))
    lives.dies(point, "--cancel", "job")
    lives.ends()
    assert [path.name for path in lives.folder.rglob("*")] == [".records"]
    assert lives.terminal_events() == ["job_cancelled job"]


def test_a_job_whose_container_is_gone_fails_and_says_so(lives: Lives, docker_engine: DockerEngine):
    lives.dies("after:Engine.start:1", "--submit", json.dumps(body("robbed", waiting("waits"))))
    docker_engine.client.remove_container(lives.record("robbed")["steps"][0]["container_id"], force=True)
    lives.ends()
    assert lives.terminal_events() == ["step_failed robbed waits", "job_failed robbed"]
    assert "its container is gone" in lives.record("robbed")["error_message"]


def test_a_container_without_a_job_is_removed(lives: Lives, docker_engine: DockerEngine):
    lives.dies("after:Engine.start:1", "--submit", json.dumps(body("lost", waiting("waits"))))
    (lives.folder / ".records/lost.json").unlink()
    assert docker_engine.containers() == ["solar-job-lost-waits"]
    lives.ends()
    assert docker_engine.containers() == []


def test_an_orderly_end_leaves_the_job_to_the_next_agent(lives: Lives, docker_engine: DockerEngine):
    agent = lives.spawn("--submit", json.dumps(body("long", shell("one", "echo up; sleep 3; echo down"))))
    wait_until(lambda: any("line" in one for one in lives.said()), 30, "the step to run")
    agent.terminate()
    assert agent.wait(30) == 0
    assert docker_engine.containers() == ["solar-job-long-one"]
    lives.ends()
    assert lives.log("long", "one") == ["up", "down"]
    assert lives.terminal_events() == ["step_completed long one", "job_completed long"]
