"""Jobs on a real Docker engine: their steps, their output, their end."""

import json
import time

import psutil
import pytest

from solarhost.containers.engine import PIDS_LIMIT, ContainerSpec, Engine
from solarhost.jobs.errors import JobEnded, NoSuchJob
from solarhost.jobs.records import Status
from solarhost.threads import NoThread
from tests.agent import wait_until
from tests.conftest import Exhausted
from tests.docker_engine import IMAGE, DockerEngine
from tests.jobs_fixtures import Jobs, definition, shell, step, waiting


def test_steps_run_in_order_and_hand_files_on(jobs: Jobs):
    job = jobs.run(
        "pipeline",
        shell(
            "fetch",
            "echo weights > /workspace/models/m; echo rows > /workspace/data/d",
            is_preparation_step=True,
        ),
        shell("train", "cat /workspace/models/m /workspace/data/d > /workspace/output/o"),
        step("show", "cat /workspace/output/o"),
        base_model_uri="huggingface://a/b",
        training_config={"epochs": 3},
    )
    assert job.status is Status.COMPLETED
    assert [one.status for one in job.steps] == [Status.COMPLETED] * 3
    assert jobs.log("pipeline", "show") == "weights\nrows\n"
    config = json.loads((jobs.folder / "pipeline/config/job.json").read_text())
    assert config["pipeline"] == ["fetch", "train", "show"]
    assert config["base_model_uri"] == "huggingface://a/b"
    assert json.loads((jobs.folder / "pipeline/config/training.json").read_text()) == {"epochs": 3}
    assert (jobs.folder / "pipeline/output/o").stat().st_uid == 1000


def test_each_event_follows_its_change_in_order(jobs: Jobs):
    statuses = []

    def publish(event):
        jobs.heard.events.append(event)
        payload = getattr(event, "payload", {})
        if "status" in payload:
            job = jobs.service.get("told")
            stored = job.steps[payload["step_index"]].status if "step_index" in payload else job.status
            statuses.append((payload["status"], str(stored), payload["host_id"]))

    jobs.heard.publish = publish
    jobs.restart()
    jobs.run("told", step("one", "echo 1"), step("two", "false"), step("three", "echo 3"))
    assert jobs.heard.names("told") == [
        "job_started",
        "step_started one",
        "step_completed one",
        "step_started two",
        "step_failed two",
        "job_failed",
    ]
    assert all(told == stored and host == "host-1" for told, stored, host in statuses)
    entries = jobs.heard.entries("told", "one")
    assert [(e["seq"], e["line"], e.get("completed"), e.get("exit_code")) for e in entries] == [
        (1, "1", None, None),
        (2, "", True, 0),
    ]
    before = [getattr(event, "name", "log") for event in jobs.heard.events]
    assert before.index("log") < before.index("step_log") < before.index("step_completed")


def test_a_failure_explains_itself_and_stops_the_job(jobs: Jobs):
    script = "for i in $(seq 30); do echo line $i >&2; done; exit 3"
    job = jobs.run("fails", shell("bad", script), step("after", "echo no"))
    assert job.status is Status.FAILED
    assert job.error_message == "step bad failed with exit code 3"
    assert job.finished_at is not None
    bad, after = job.steps
    assert (bad.status, bad.exit_code, bad.signal) == (Status.FAILED, 3, None)
    assert bad.error_message == "\n".join(f"line {i}" for i in range(11, 31))
    assert (after.status, after.container_id) == (Status.CANCELLED, None)


def test_a_signal_is_told_apart_from_an_exit_code(jobs: Jobs):
    jobs.service.submit(definition("shot", waiting("waits")))
    wait_until(lambda: jobs.heard.entries("shot"), 30, "the step to run")
    jobs.engine.client.kill(jobs.service.get("shot").steps[0].container_id, "KILL")
    one = jobs.ended("shot").steps[0]
    assert (one.status, one.exit_code, one.signal) == (Status.FAILED, 137, 9)
    assert one.error_message == "ended by signal 9 (SIGKILL), exit code 137, nothing on stderr"


def test_a_kill_for_want_of_memory_is_told(jobs: Jobs):
    grows = """until [ -e /workspace/output/go ]; do sleep 0.1; done
        exec awk 'BEGIN { text = "x"; while (1) text = text text }'"""
    jobs.service.submit(definition("big", shell("grows", f"echo up; {grows}")))
    wait_until(lambda: jobs.heard.entries("big"), 30, "the step to run")
    jobs.engine.client.update_container(
        jobs.service.get("big").steps[0].container_id, mem_limit=32 << 20, memswap_limit=32 << 20
    )
    (jobs.folder / "big/output/go").touch()
    one = jobs.ended("big").steps[0]
    assert (one.status, one.exit_code, one.signal, one.oom_killed) == (Status.FAILED, 137, 9, True)
    assert (one.error_message or "").startswith("killed for want of memory")


def test_commands_come_as_lists_and_as_shell_words(jobs: Jobs):
    jobs.run("words", step("list", ["echo", "a  b", "$HOME"]), step("text", "echo 'a  b' $HOME"))
    assert jobs.log("words", "list") == "a  b $HOME\n"
    assert jobs.log("words", "text") == "a  b $HOME\n"


def test_output_is_told_apart_cut_into_lines_and_freed_of_secrets(make_jobs):
    jobs = make_jobs(hf_token="hf_very_secret")
    script = r"""printf 'half '; sleep 0.3; echo whole; echo err >&2; printf '\377\376bad\n'
        echo "token $HF_TOKEN"; head -c 70000 /dev/zero | tr '\0' x; echo; printf 'no end'"""
    jobs.run("output", shell("prints", script))
    entries = jobs.heard.entries("output")
    assert [e["seq"] for e in entries] == list(range(1, len(entries) + 1))
    stdout = [e["line"] for e in entries[:-1] if e["stream"] == "stdout"]
    assert stdout == [
        "half whole",
        "\ufffd\ufffdbad",
        "token ***",
        "x" * 65536 + " [line continues]",
        "x" * (70000 - 65536),
        "no end",
    ]
    assert [e["line"] for e in entries if e["stream"] == "stderr"] == ["err"]
    assert sorted(jobs.log("output", "prints").splitlines()) == sorted([*stdout, "err"])
    marker = entries[-1]
    assert (marker["completed"], marker["exit_code"], marker["line"]) == (True, 0, "")
    assert "hf_very_secret" not in json.dumps(jobs.heard.entries("output"))


def test_a_progress_bar_becomes_a_line_a_second(jobs: Jobs):
    script = (
        r"""i=0; while [ $i -lt 26 ]; do i=$((i+1)); printf '\r%d/26' $i; sleep 0.1; done; echo; echo done"""
    )
    jobs.run("bar", shell("loads", script))
    lines = jobs.log("bar", "loads").splitlines()
    assert lines[-2:] == ["26/26", "done"]
    assert 3 <= len(lines) <= 8  # the pace of a busy machine is its own
    updates = [int(line.partition("/")[0]) for line in lines[:-1]]
    assert updates == sorted(set(updates))


def test_recent_lines_are_shown_while_it_runs_and_after_a_restart(jobs: Jobs):
    jobs.service.submit(definition("recent", waiting("counts", "seq 250; echo oops >&2")))
    wait_until(lambda: len(jobs.heard.entries("recent")) >= 251, 30, "its lines")
    job = jobs.service.get("recent")
    shown = jobs.service.logs.recent(job, 0)
    assert len(shown) == 100
    assert set(shown[0]) == {"seq", "stream", "line", "timestamp"}
    wait_until(lambda: jobs.service.view("recent").pids, 30, "its first process to be known")
    view = jobs.service.view("recent")
    assert (view.running, view.workspace) == (True, jobs.folder / "recent")
    assert [psutil.Process(pid).uids().real for pid in view.pids] == [1000]  # the container's first process
    jobs.restart()
    wait_until(lambda: jobs.service.logs.recent(job, 0) == shown, 30, "the same lines")
    jobs.service.cancel("recent")


def test_a_step_that_is_silent_beyond_every_timeout_succeeds(make_jobs, monkeypatch):
    monkeypatch.setattr("solarhost.containers.engine.ANSWER_S", 1)
    jobs = make_jobs()
    assert jobs.run("silent", step("sleeps", "sleep 2.5")).status is Status.COMPLETED


def test_a_cancelled_step_that_ignores_term_is_gone_after_five_seconds(jobs: Jobs, docker_engine):
    jobs.service.submit(
        definition("stubborn", shell("ignores", "trap '' TERM; echo up; while true; do sleep 1; done"))
    )
    wait_until(lambda: jobs.heard.entries("stubborn"), 30, "the step to run")
    started = time.monotonic()
    jobs.service.cancel("stubborn")
    assert time.monotonic() - started < 9  # what solar-control waits
    assert docker_engine.containers() == []
    assert not (jobs.folder / "stubborn").exists()
    assert jobs.heard.names("stubborn")[-1] == "job_cancelled"
    marker = jobs.heard.entries("stubborn")[-1]
    assert (marker["completed"], marker["exit_code"]) == (True, 137)
    with pytest.raises(NoSuchJob):
        jobs.service.get("stubborn")


def test_a_cancel_in_a_queue_or_after_the_end(make_jobs):
    jobs = make_jobs(max_jobs=1)
    jobs.service.submit(definition("first", waiting("waits")))
    jobs.service.submit(definition("second", waiting("waits")))
    assert jobs.service.get("second").status is Status.PENDING
    jobs.service.cancel("second")
    assert not (jobs.folder / "second").exists()
    assert jobs.heard.names("second") == ["job_cancelled"]
    jobs.service.cancel("first")
    jobs.run("third", step("ends", "true"))
    with pytest.raises(JobEnded):
        jobs.service.cancel("third")
    assert (jobs.folder / "third").is_dir()


def test_an_image_that_does_not_exist_fails_its_step(jobs: Jobs, docker_engine):
    job = jobs.run("noimage", {"name": "one", "image": "127.0.0.1:9/none:1", "command": "true"})
    assert job.steps[0].status is Status.FAILED
    assert "127.0.0.1:9/none:1" in (job.steps[0].error_message or "")
    assert (job.error_message or "").startswith("step one failed: Docker could not pull image")
    marker = jobs.heard.entries("noimage")[-1]
    assert (marker["completed"], marker["exit_code"]) == (True, None)


def test_images_that_are_no_references_fail_their_steps(jobs: Jobs):
    for number, image in enumerate(
        ("http://x/y", "Upper/Case", "-x/y", "a b", "a@sha256:12", "../../etc", "é")
    ):
        job = jobs.run(f"image{number}", {"name": "one", "image": image, "command": "true"})
        assert job.steps[0].status is Status.FAILED
        assert f"image {image}: " in (job.steps[0].error_message or ""), job.steps[0].error_message


def test_a_command_that_does_not_exist_fails_its_step(jobs: Jobs):
    job = jobs.run("nocommand", step("one", ["/no/such/program"]))
    assert "/no/such/program" in (job.steps[0].error_message or "")


def test_gpus_without_the_toolkit_fail_their_step(jobs: Jobs):
    jobs.gpu_count = 1
    job = jobs.run("gpu", step("one", "true", gpu={"count": 1}))
    assert "no nvidia runtime" in (job.steps[0].error_message or "")


@pytest.mark.parametrize(
    ("gpu", "count", "device_ids"),
    [
        ({"count": 2}, 2, []),
        ({"count": -1}, -1, []),
        ({"device_ids": ["1", "GPU-1a"]}, 0, ["1", "GPU-1a"]),
        ({"count": 2, "device_ids": ["1"]}, 0, ["1"]),
    ],
)
def test_gpus_are_asked_of_the_engine_as_its_toolkit_reads_them(
    docker_engine: DockerEngine, gpu, count, device_ids
):
    """Without GPUs a container can be made, and read; it could not be started."""
    (one,) = definition("gpu", step("one", "true", gpu=gpu)).steps
    container = Engine(docker_engine.address).create(
        ContainerSpec(
            name="gpu", image=IMAGE, command=one.command, environment={}, binds=[], user="1000:1000",
            labels={}, gpus=one.gpu,
        )
    )  # fmt: skip
    (asked,) = docker_engine.client.inspect_container(container)["HostConfig"]["DeviceRequests"]
    docker_engine.client.remove_container(container)
    assert (asked["Count"], asked["DeviceIDs"]) == (count, device_ids)
    assert asked["Capabilities"] == [["gpu"]]


def test_gpus_that_the_engine_can_not_give_after_all_fail_their_step(make_jobs, toolkit_engine):
    """It has the toolkit's runtime, and neither its hook nor a GPU."""
    jobs = make_jobs(toolkit_engine)
    jobs.gpu_count = 1
    job = jobs.run("gpu", step("one", "env", gpu={"count": 1}))
    assert "could not select device driver" in (job.steps[0].error_message or "")
    assert toolkit_engine.containers() == []


def test_a_container_sees_its_job_and_nothing_else(make_jobs, docker_engine):
    jobs = make_jobs(
        api_key="the-agents-own-key",
        solar_control_api_key="the-key-of-control",
        harbor_password="pw",
        hf_token="tok",
    )
    jobs.run("other", shell("leaves", "echo private > /workspace/output/o"))
    look = r"""env; cat /proc/mounts; ls -la / /workspace /workspace/*; id
        find / -name '*.sock' -o -name o 2>/dev/null | grep -v ^/proc
        touch /workspace/models/x /workspace/data/x /workspace/logs/x /etc/x
        touch /workspace/config/x && echo wrote; sleep 1"""
    jobs.service.submit(definition("looks", shell("looks", look), shell("never", "true")))
    wait_until(lambda: jobs.service.get("looks").steps[0].container_id, 30, "its container")
    inspected = jobs.engine.client.inspect_container(jobs.service.get("looks").steps[0].container_id)
    jobs.ended("looks")
    seen = jobs.log("looks", "looks")
    for hidden in (
        "the-agents-own-key",
        "the-key-of-control",
        "docker.sock",
        str(jobs.folder / "other"),
        "private",
    ):
        assert hidden not in seen
    assert seen.count("Read-only file system") == 2
    assert "wrote" in seen
    assert "uid=1000 gid=1000" in seen
    for line in ("JOB_ID=looks", "STEP_NAME=looks", "STEP_INDEX=0", "JOB_CONFIG=/workspace/config/job.json"):
        assert line in seen
    host = inspected["HostConfig"]
    assert (host["Privileged"], host["NetworkMode"], host["PidMode"]) == (False, "bridge", "")
    assert (host["SecurityOpt"], host["CapAdd"], host["Devices"]) == (["no-new-privileges"], None, None)
    assert host["PidsLimit"] == PIDS_LIMIT
    assert "the-agents-own-key" not in json.dumps(inspected)
    assert "the-key-of-control" not in json.dumps(inspected)
    folder = str(jobs.folder / "looks")
    assert all(mount["Source"].startswith(f"{folder}/") for mount in inspected["Mounts"])
    assert inspected["Name"] == "/solar-job-looks-looks"


def test_names_that_would_collide_in_docker_do_not(make_jobs):
    jobs = make_jobs(max_jobs=2)
    jobs.service.submit(definition("a-b", shell("c", "echo first; sleep 2")))
    wait_until(lambda: jobs.heard.entries("a-b"), 30, "the first to run")
    jobs.service.submit(definition("a", shell("b-c", "echo second")))
    assert jobs.ended("a").status is jobs.ended("a-b").status is Status.COMPLETED
    assert jobs.log("a", "b-c") == "second\n"


def test_a_job_that_finds_no_thread_waits_for_one(jobs: Jobs, exhausted: Exhausted):
    with exhausted("job-"):
        jobs.service.submit(definition("waits", step("one", "true")))
        jobs.service.submit(definition("unwanted", step("one", "true")))
        assert jobs.service.get("waits").status is Status.PENDING
        with pytest.raises(NoThread):
            jobs.service.cancel("unwanted")
    jobs.service.cancel("unwanted")
    assert jobs.ended("waits").status is Status.COMPLETED
    assert [job.id for job in jobs.service.list()] == ["waits"]


def test_a_step_whose_output_nobody_can_read_fails_and_leaves_no_container(jobs: Jobs, exhausted: Exhausted):
    with exhausted("steplog-"):
        job = jobs.run("unread", step("one", "true"))
    assert job.status is Status.FAILED
    assert "no thread can be started" in str(job.error_message)


def test_an_ended_job_goes_when_its_retention_is_over(make_jobs, monkeypatch):
    monkeypatch.setattr("solarhost.jobs.service.RETENTION_CHECK_S", 0.1)
    jobs = make_jobs()
    script = "mkdir /workspace/output/deep; touch /workspace/output/deep/f; chmod 500 /workspace/output/deep"
    jobs.service.submit(definition("short", shell("one", script), retention_hours=0))
    jobs.service.submit(definition("long", step("one", "true")))
    wait_until(lambda: not (jobs.folder / ".records/short.json").exists(), 60, "the short one to go")
    assert not (jobs.folder / "short").exists()
    assert jobs.ended("long").status is Status.COMPLETED
    assert (jobs.folder / "long").is_dir()


def test_many_jobs_at_once_all_end_in_order(make_jobs, docker_engine):
    jobs = make_jobs(max_jobs=3)
    most = 0
    for number in range(6):
        jobs.service.submit(
            definition(f"j{number}", *(step(name, f"echo {name}") for name in ("x", "y", "z")))
        )

    def all_ended():
        nonlocal most
        running = [job for job in jobs.service.list() if job.status is Status.RUNNING]
        most = max(most, len(running))
        return all(job.status.is_terminal for job in jobs.service.list())

    wait_until(all_ended, 90, "all to end")
    wait_until(lambda: len(docker_engine.containers()) == 0, 30, "their containers to go")
    assert most <= 3
    expected = [
        "job_started",
        *(f"step_{what} {s}" for s in "xyz" for what in ("started", "completed")),
        "job_completed",
    ]
    for number in range(6):
        assert jobs.heard.names(f"j{number}") == expected
