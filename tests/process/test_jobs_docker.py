"""A Docker engine that stops, crashes, hangs and comes back."""

import time
from threading import Thread

import pytest

from solarhost.containers.engine import Engine
from solarhost.jobs.errors import ExecutorUnavailable, StillEnding
from solarhost.jobs.records import Status
from tests.agent import wait_until
from tests.docker_engine import DockerEngine
from tests.jobs_fixtures import Jobs, definition, shell, step, waiting

COUNTS = "i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo $i; sleep 0.1; done"


def test_a_step_goes_on_while_docker_is_restarted(jobs: Jobs, docker_engine: DockerEngine):
    jobs.service.submit(definition("counts", shell("one", COUNTS), step("two", "echo after")))
    wait_until(lambda: len(jobs.heard.entries("counts")) > 5, 30, "the step to run")
    docker_engine.stop()
    wait_until(lambda: any("jobs wait" in text for text in jobs.problems.current()), 30, "the problem")
    docker_engine.start()
    job = jobs.ended("counts")
    assert job.status is Status.COMPLETED
    assert jobs.log("counts", "one").splitlines() == [str(i) for i in range(1, 61)]
    assert [e["seq"] for e in jobs.heard.entries("counts", "one")] == list(range(1, 62))
    assert jobs.heard.names("counts")[-1] == "job_completed"
    wait_until(lambda: jobs.problems.current() == [], 30, "the problem to be over")


@pytest.mark.parametrize("end", [DockerEngine.stop, DockerEngine.kill])
def test_a_step_whose_container_docker_took_along_fails_and_says_so(make_jobs, plain_engine, end):
    jobs = make_jobs(plain_engine)
    ends_badly = "trap 'exit 3' TERM; echo up; sleep 600 & wait"
    jobs.service.submit(definition("taken", shell("one", ends_badly), step("two", "true")))
    # Docker has told that it runs: one that crashes before that may lose track of what it started.
    wait_until(lambda: jobs.heard.entries("taken") and jobs.service.view("taken").pids, 30, "the step to run")
    end(plain_engine)
    plain_engine.start()
    job = jobs.ended("taken")
    assert job.status is Status.FAILED
    assert job.steps[0].exit_code == 3  # after a crash too: the engine that comes back ends what it finds
    if end is DockerEngine.kill:  # one that stops in order may tell the end before it goes
        assert "the Docker engine went away while it ran" in (job.steps[0].error_message or "")
    assert jobs.heard.names("taken") == ["job_started", "step_started one", "step_failed one", "job_failed"]
    assert jobs.run("next", step("one", "true")).status is Status.COMPLETED
    assert plain_engine.containers() == []


def test_docker_crashes_at_each_point_of_a_step(jobs: Jobs, docker_engine: DockerEngine, monkeypatch):
    """Before a container is created, is started, is waited for, and is removed: one step each."""
    due = ["create", "start", "wait", "remove"]
    restarts: list[Thread] = []

    def crash_once(call, original):
        def method(self, *given, **named):
            if due and due[0] == call and len(jobs.service.get("crash").steps) - len(due) == running():
                due.pop(0)
                docker_engine.kill()
                restarts.append(Thread(target=docker_engine.start, name="restart"))
                restarts[-1].start()
            return original(self, *given, **named)

        return method

    def running() -> int:
        return jobs.service.get("crash").current_step_index

    for call in due:
        monkeypatch.setattr(Engine, call, crash_once(call, getattr(Engine, call)))
    # What is printed while Docker is away is Docker's to keep; one that also ends meanwhile may lose it.
    job = jobs.run(
        "crash", *(shell(f"to-{call}", "echo 1; sleep $((STEP_INDEX == 2 ? 4 : 0)); echo 2") for call in due)
    )
    for restart in restarts:
        restart.join()
    assert due == []
    assert job.status is Status.COMPLETED, job.error_message
    for one in job.steps:
        assert jobs.log("crash", one.name) == "1\n2\n"
    assert [name for name in jobs.heard.names("crash") if "completed" in name] == [
        *(f"step_completed {one.name}" for one in job.steps),
        "job_completed",
    ]
    wait_until(lambda: docker_engine.containers() == [], 30, "the sweep")


def test_docker_that_stays_away_fails_what_ran_and_keeps_what_waits(make_jobs, docker_engine: DockerEngine):
    jobs = make_jobs(docker_grace_s=1.0, max_jobs=1)
    jobs.service.submit(definition("ran", waiting("one")))
    jobs.service.submit(definition("waited", step("one", "true")))
    wait_until(lambda: jobs.heard.entries("ran"), 30, "the step to run")
    docker_engine.stop()
    wait_until(lambda: jobs.service.get("ran").status.is_terminal, 30, "its end")
    assert "it was waited for 1 s" in (jobs.service.get("ran").error_message or "")
    with pytest.raises(ExecutorUnavailable):
        jobs.service.submit(definition("refused", step("one", "true")))
    assert not (jobs.folder / "refused").exists()
    time.sleep(2)  # twice the grace: a job that waits for its turn does not use it up
    assert jobs.service.get("waited").status is Status.PENDING
    docker_engine.start()
    assert jobs.ended("waited").status is Status.COMPLETED
    wait_until(lambda: docker_engine.containers() == [], 30, "the container that was left behind to go")


def test_docker_that_hangs_holds_up_no_answer(jobs: Jobs, docker_engine: DockerEngine):
    jobs.service.submit(definition("hung", waiting("one")))
    wait_until(lambda: jobs.heard.entries("hung"), 30, "the step to run")
    docker_engine.freeze()
    try:
        started = time.monotonic()
        with pytest.raises(ExecutorUnavailable):
            jobs.service.submit(definition("refused", step("one", "true")))
        assert jobs.service.get("hung").status is Status.RUNNING
        with pytest.raises(StillEnding):
            jobs.service.cancel("hung")
        assert time.monotonic() - started < 3.5 + 9
    finally:
        docker_engine.thaw()
    wait_until(lambda: jobs.service.view("hung") is None, 30, "the cancel to come through")
    assert jobs.heard.names("hung")[-1] == "job_cancelled"
    assert not (jobs.folder / "hung").exists()


def test_a_host_without_docker_is_not_degraded_for_long_by_a_job_that_it_refused(
    make_jobs, docker_engine: DockerEngine
):
    docker_engine.stop()
    jobs = make_jobs()
    with pytest.raises(ExecutorUnavailable):
        jobs.service.submit(definition("refused", step("one", "true")))
    wait_until(lambda: jobs.problems.current() == [], 30, "the problem to be over")
    docker_engine.start()


def test_an_agent_that_starts_before_docker_waits_for_it(make_jobs, docker_engine: DockerEngine):
    jobs = make_jobs()
    jobs.service.submit(definition("early", shell("one", "echo up; sleep 4; echo down")))
    wait_until(lambda: jobs.heard.entries("early"), 30, "the step to run")
    jobs.close()
    docker_engine.stop()
    jobs.restart()
    wait_until(lambda: jobs.problems.current(), 30, "the problem")
    docker_engine.start()
    assert jobs.ended("early").status is Status.COMPLETED
    assert jobs.log("early", "one") == "up\ndown\n"
