"""The command line against a real agent over real HTTP, for people and for programs."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner, Result

from solarhost.cli import main
from tests.agent import ROOT, Agent, free_port, wait_until
from tests.jobs_fixtures import body, shell, step, waiting
from tests.process.models_faults import Content, noise
from tests.process.models_hub import Hub
from tests.terminal import Terminal

FAKE = ROOT / "tests" / "process" / "fake_llama.py"
Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def cli_agent(tmp_path_factory):
    """An agent whose instances are the scripted server."""
    folder = tmp_path_factory.mktemp("cli")
    agent = Agent(folder, {"LLAMA_SERVER_PATH": str(FAKE), "MAX_RETRIES": "0"})
    agent.start()
    yield agent
    agent.end()


@pytest.fixture
def cli(cli_agent: Agent) -> Cli:
    return partial(_cli, cli_agent)


@pytest.fixture
def weights(tmp_path: Path) -> str:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    return str(tmp_path / "model.gguf")


def test_an_instance_from_creation_to_removal(cli, weights):
    flags = ["--alias", "life", "--model", weights, "--ctx-size", "4096", "--extra-args=--lines=30"]
    made = json.loads(cli("instances", "create", *flags, "--json").stdout)
    assert made["config"]["ctx_size"] == 4096
    assert made["config"]["extra_args"] == ["--lines=30"]
    started = cli("instances", "start", made["id"][:6]).stdout
    assert started == f"{made['id'][:6]} runs on port {_port(cli, 'life')}\n"
    # It answers as soon as it listens, and its last lines are read a moment later.
    wait_until(lambda: "listening" in cli("instances", "logs", "life").stdout, 60, "all that it printed")
    assert "running" in cli("instances", "ls").stdout
    [shown] = json.loads(cli("instances", "top", "--json").stdout)
    assert shown["state"]["phase"] == "idle"
    assert "life" in cli("instances", "top").stdout
    lines = cli("instances", "logs", "life", "--tail", "3").stdout.splitlines()
    assert len(lines) == 3
    seq = json.loads(cli("instances", "logs", "life", "--json").stdout.splitlines()[10])["seq"]
    later = cli("instances", "logs", "life", "--json", "--since", str(seq)).stdout.splitlines()
    assert json.loads(later[0])["seq"] == seq + 1
    assert cli("instances", "logs", "life", "--since", "2000-01-01").stdout.count("line ") == 30
    shown = cli("instances", "show", "life").stdout
    assert "idle" in shown.partition("activity")[2].partition("config")[0]
    refused = cli("instances", "update", "life", "--ctx-size", "1024", code=1)
    assert "instance life is running: stop it before" in refused.stderr
    assert "is running" in cli("instances", "rm", "life", code=1).stderr
    cli("instances", "restart", "life")
    assert json.loads(cli("instances", "show", "life", "--json").stdout)["run"] == 2
    cli("instances", "stop", "life")
    changed = cli("instances", "update", "life", "--ctx-size", "1024", "--extra-args=", "--json").stdout
    assert json.loads(changed)["config"]["ctx_size"] == 1024
    assert json.loads(changed)["config"]["alias"] == "life"
    assert "extra_args" not in json.loads(changed)["config"]
    assert "what to change" in cli("instances", "update", "life", code=2).stderr
    changed = cli("instances", "update", "life", "--vram-gb", "1.5", "--gpu-ids", "[0,1]", "--json").stdout
    assert (json.loads(changed)["vram_gb"], json.loads(changed)["config"]["ctx_size"]) == (1.5, 1024)
    assert json.loads(cli("instances", "update", "life", "--vram-gb=", "--json").stdout)["vram_gb"] is None
    cli("instances", "rm", "life")
    assert json.loads(cli("instances", "ls", "--json").stdout) == []
    assert "line 29" in cli("instances", "logs", made["id"]).stdout  # its file is still there


def _port(cli: Cli, name: str) -> int:
    port: int = json.loads(cli("instances", "show", name, "--json").stdout)["port"]
    return port


def test_an_instance_from_a_file_changed_by_flags(cli, weights):
    document = f"config:\n  alias: from-file\n  model: {weights}\n  ctx_size: 1024\npriority: staging\n"
    made = json.loads(
        cli("instances", "create", "-f", "-", "--ctx-size=2048", "--json", stdin=document).stdout
    )
    assert (made["config"]["ctx_size"], made["priority"]) == (2048, "staging")
    assert "neither JSON nor YAML" in cli("instances", "create", "-f", "-", code=2, stdin="{[").stderr
    assert (
        "ctx_size"
        in cli("instances", "create", "--alias", "x", "--model", "y", "--ctx-size", "lots", code=1).stderr
    )
    assert "quotes" in cli("instances", "create", "-f", "-", code=2, stdin="alias: 2020-01-01").stderr
    cli("instances", "create", code=2)
    cli("instances", "ls", "--url", "http://[::", code=2)
    cli("instances", "rm", made["id"])


def test_a_flag_that_is_no_field_changes_nothing(cli, weights):
    flags = ["--alias", "misspelt", "--model", weights]
    refused = cli("instances", "create", "--alias", "misspelt", "--modell", weights, code=2)
    assert "did you mean --model?" in refused.stderr
    assert json.loads(cli("instances", "ls", "--json").stdout) == []
    made = cli("instances", "create", *flags, "--ctx-siz", "22", "--allow-unknown")
    assert "ctx_siz" in made.stderr  # the agent's warning
    refused = cli("instances", "update", "misspelt", "--ctx-sise", "22", code=2)
    assert "did you mean --ctx-size?" in refused.stderr
    changed = cli("instances", "update", "misspelt", "-f", "-", stdin="ctx_sise: 22")
    assert "ctx_sise" in changed.stderr
    cli("instances", "rm", "misspelt")


def test_a_failed_start_shows_the_end_of_the_log(cli, weights):
    cli("instances", "create", "--alias", "broken", "--model", weights, "--extra-args=--exit=3")
    failed = cli("instances", "start", "broken", code=1)
    assert "it will not work" in failed.stderr
    assert "Hint: " in failed.stderr
    cli("instances", "rm", "broken")


def test_a_name_that_fits_nothing_or_several(cli, weights):
    for _ in range(2):
        cli("instances", "create", "--alias", "twin", "--model", weights)
    refused = cli("instances", "start", "twin", code=2).stderr
    assert "2 instances" in refused
    assert refused.count("  stopped") == 2
    assert "did you mean 'twin'" in cli("instances", "show", "twim", code=3).stderr
    cli("jobs", "show", "nothing", code=3)
    cli("models", "rm", "nothing", code=3)
    ids = [one["id"] for one in json.loads(cli("instances", "ls", "--json").stdout)]
    cli("instances", "rm", *ids)


def test_reservations_and_resources(cli):
    made = cli("reservations", "create", "--job-id", "j1", "--ram-gb", "0.25", "--ttl", "2h").stdout.strip()
    assert "in 1 h" in cli("reservations", "ls").stdout
    assert "RAM" in cli("resources").stdout
    assert json.loads(cli("resources", "--json").stdout)["reservations"][0]["id"] == made
    too_much = cli("reservations", "create", "--job-id", "j2", "--ram-gb", "999999", code=1)
    assert "999999" in too_much.stderr
    cli("reservations", "rm", made[:8])
    assert "No reservations" in cli("reservations", "ls").stdout


def test_a_refused_pull_says_why(cli):
    assert "--ref" in cli("models", "pull", "repo://m:1", code=2).stderr
    for here in ("local://minilm", "/srv/minilm", "./minilm"):
        assert "--model-source" in cli("models", "pull", here, code=2).stderr
    assert "No models" in cli("models", "ls").stdout
    assert "HARBOR" in cli("models", "pull", "repo://m:1", "--ref", "p/m:1", code=1).stderr


def test_what_the_agent_refuses_is_told_in_commands_and_sentences(make_agent, tmp_path):
    agent = make_agent(DOCKER_HOST=f"unix://{tmp_path}/no.sock")
    agent.start()
    source = ["--alias", "x", "--model-source", "huggingface://org/none"]
    refused = _cli(agent, "instances", "create", *source, "--start", code=1).stderr
    assert "`solar-host models pull`" in refused
    job = tmp_path / "job.json"
    job.write_text(json.dumps(body("j1", shell("s1", "true"))))
    refused = _cli(agent, "jobs", "submit", "-f", str(job), code=1).stderr
    assert "no.sock" in refused
    assert "executor" not in refused


def test_a_wrong_key_and_something_that_is_no_agent(cli):
    assert "does not accept this key" in cli("instances", "ls", code=4, key="wrong").stderr
    address = f"http://127.0.0.1:{free_port()}"
    assert "no agent answers" in cli("instances", "ls", "--url", address, code=5).stderr


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"service": "another"}'])
def test_a_stranger_never_sees_the_key(cli, body):
    seen: list[str | None] = []

    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("X-API-Key"))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Stranger) as server:
        Thread(target=server.handle_request, daemon=True).start()
        refused = cli("resources", "--url", f"http://127.0.0.1:{server.server_port}", code=5)
    assert "is no Solar Host" in refused.stderr
    assert seen == [None]


def test_a_reader_that_has_enough_ends_it_quietly(cli, cli_agent, weights):
    cli("instances", "create", "--alias", "long", "--model", weights, "--extra-args=--lines=20000")
    cli("instances", "start", "long")
    writing = _spawn(cli_agent, "instances", "logs", "-f", "long", stdout=subprocess.PIPE)
    assert writing.stdout is not None
    writing.stdout.readline()
    writing.stdout.close()
    assert writing.wait(30) == 1
    cli("instances", "rm", "-f", "long")


def test_a_pull_from_the_hub(make_agent, tmp_path):
    hub = Hub()
    try:
        hub.add("org/model", model__gguf=noise(300_000), notes__txt=Content(b"x"))
        agent = make_agent(HF_ENDPOINT=hub.url, MIN_FREE_DISK_GB="0")
        agent.start()
        hub.fault("model.gguf", stall_at=1000, times=2)
        given_up = _spawn(agent, "models", "pull", "org/model", stdout=subprocess.PIPE)
        try:
            wait_until(lambda: _phases(agent) == ["downloading"], 60, "the download")
            assert "huggingface://org/model" in _cli(agent, "models", "pulls").stdout
            given_up.send_signal(signal.SIGINT)
            assert b"cancelled" in given_up.communicate(timeout=60)[0]
        finally:
            given_up.kill()
            given_up.wait()
        assert given_up.returncode == 130
        assert "No pulls" in _cli(agent, "models", "pulls").stdout
        with _spawn(agent, "models", "pull", "org/model", stdout=subprocess.PIPE) as ended:
            wait_until(lambda: _phases(agent) == ["downloading"], 60, "the download")
            assert "models pulls` lists" in _cli(agent, "models", "cancel", "another", code=3).stderr
            assert "cancelled" in _cli(agent, "models", "cancel", "huggingface://org/model").stdout
            assert b"Error: " in ended.communicate(timeout=60)[0]
        assert ended.returncode == 1
        hub.fault("model.gguf", status=503, times=1)
        with _spawn(
            agent, "models", "pull", "org/model", "--include", "*.gguf", stdout=subprocess.PIPE
        ) as pull:
            output = pull.communicate(timeout=60)[0].decode()
        assert pull.returncode == 0, output
        assert output.count("503 Service Unavailable; try 2 of") == 1
        assert output.strip().endswith("models/hf--org--model")
        assert "huggingface://org/model" in _cli(agent, "models", "ls").stdout
        assert "1 files removed" in _cli(agent, "models", "rm", "huggingface://org/model").stdout
    finally:
        hub.end()


def test_a_job_from_its_submission_to_its_end(make_agent, docker_engine, tmp_path):
    agent = make_agent(DOCKER_HOST=docker_engine.address, MIN_FREE_DISK_GB="0")
    agent.start()

    def cli(*arguments: str, code: int = 0, stdin: str | None = None) -> Result:
        return _cli(agent, "jobs", *arguments, code=code, stdin=stdin)

    sent = json.dumps(body("cli-1", shell("one", "echo first; sleep 1; echo last"), shell("two", "exit 4")))
    assert cli("submit", "-f", "-", stdin=sent).stdout.strip() == "cli-1"
    followed = cli("logs", "-f", "cli-1", code=1)
    assert followed.stdout.splitlines() == ["one | first", "one | last"]
    assert followed.stderr.startswith("failed")
    assert "failed" in cli("ls").stdout
    assert "two" in cli("show", "cli").stdout
    assert cli("logs", "cli-1", "--tail", "1").stdout == "one | last\n"
    assert "it has one, two" in cli("logs", "cli-1", "--step", "three", code=3).stderr
    assert cli("logs", "cli-1", "--step", "two").stdout == ""
    assert cli("logs", "cli-1", "--tail", "0").stdout == ""
    cli("cancel", "cli-1", code=1)  # it has ended
    cli("submit", "-f", "-", stdin=json.dumps(body("cli-2", waiting("one"))))
    assert "cancelled" in cli("cancel", "cli-2").stdout


def test_a_followed_step_has_every_line_once_although_its_agent_is_killed(
    make_agent, docker_engine, tmp_path
):
    agent = make_agent(DOCKER_HOST=docker_engine.address, MIN_FREE_DISK_GB="0")
    agent.start()
    script = "seq 1 3000; until [ -e /workspace/output/go ]; do sleep 0.2; done; seq 3001 3100"
    accepted = agent.post("/jobs", body("long", shell("one", script), step("two", "true"))).json()
    output = tmp_path / "followed"
    with output.open("wb") as file:
        following = _spawn(agent, "jobs", "logs", "-f", "--step", "one", "--json", "long", stdout=file)
    try:
        wait_until(lambda: output.read_bytes().count(b"\n") >= 3000, 30, "the first lines")
        agent.kill()
        agent.start()
        Path(accepted["workspace_path"], "output/go").touch()
        assert following.wait(60) == 0
    finally:
        following.kill()
        following.wait()
    entries = [json.loads(line) for line in output.read_text().splitlines() if line.startswith("{")]
    assert [(one["seq"], one["line"]) for one in entries] == [(n, str(n)) for n in range(1, 3101)]
    assert _cli(agent, "jobs", "logs", "long").stdout.count("\n") == 3100


def test_a_followed_log_goes_on_after_a_restart_of_the_agent(make_agent, weights, tmp_path):
    agent = make_agent(LLAMA_SERVER_PATH=str(FAKE), ON_SHUTDOWN="detach")
    agent.start()
    instance_id = agent.create({"alias": "f", "model": weights, "extra_args": ["--lines=3"]})
    agent.post(f"/instances/{instance_id}/start")
    output = tmp_path / "followed"
    with output.open("wb") as file:
        following = _spawn(agent, "instances", "logs", "-f", "f", stdout=file)
    try:
        wait_until(lambda: b"listening" in output.read_bytes(), 30, "the first lines")
        agent.stop()
        agent.start()
        agent.post(f"/instances/{instance_id}/restart")
        wait_until(lambda: output.read_bytes().count(b"listening") == 2, 40, "the lines of the second run")
        assert output.read_bytes().count(b"line 0") == 2
        following.send_signal(signal.SIGINT)
        assert following.wait(20) == 130
        assert b"Traceback" not in output.read_bytes()
    finally:
        following.kill()
        following.wait()
        agent.post(f"/instances/{instance_id}/stop")


def _cli(
    agent: Agent, *arguments: str, code: int = 0, stdin: str | None = None, key: str | None = None
) -> Result:
    """One command in this process."""
    environment = {"SOLAR_HOST_URL": agent.url, "SOLAR_HOST_KEY": key or agent.key}
    result = CliRunner().invoke(main, arguments, input=stdin, env=environment, prog_name="solar-host")
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.stderr
    assert agent.key not in result.output
    return result


def _phases(agent: Agent) -> list[str]:
    return [one["phase"] for one in agent.get("/models/pulls").json()]


def _spawn(agent: Agent, *arguments: str, **options) -> subprocess.Popen:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SOLAR_HOST_URL": agent.url,
        "SOLAR_HOST_KEY": agent.key,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "solarhost", *arguments], env=environment, stderr=subprocess.STDOUT, **options
    )


def test_a_start_that_ran_nothing_sends_nobody_to_its_log(cli):
    made = cli("instances", "create", "--alias", "no-file", "--model", "/none.gguf", "--start", code=1)
    assert "there is no file /none.gguf" in made.stderr
    assert "instances logs" not in made.stderr
    cli("instances", "rm", "no-file")


def test_ctrl_c_is_quiet_even_during_the_imports():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-X", "importtime", "-m", "solarhost", "--help"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as early:
        assert early.stderr is not None
        next(line for line in early.stderr if line.split(b"|")[-1].strip() == b"click")
        early.send_signal(signal.SIGINT)
        rest = early.communicate(timeout=60)[1]
    assert early.returncode == 130
    assert b"Traceback" not in rest
    assert b"solarhost.cli" not in rest


def test_a_start_on_a_terminal_shows_how_far_it_is_and_goes_on_after_ctrl_c(cli, cli_agent, weights):
    cli("instances", "create", "--alias", "slow", "--model", weights, "--extra-args=--never-ready")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SOLAR_HOST_URL": cli_agent.url}
    command = [sys.executable, "-m", "solarhost", "instances", "start", "slow"]
    terminal = Terminal(command, {**environment, "SOLAR_HOST_KEY": cli_agent.key, "TERM": "xterm"})
    try:
        terminal.wait_for("slow starting, ")
        terminal.wait_for("listening")  # the newest line of its log
        terminal.interrupt()
        terminal.wait_for("the start goes on")
        assert terminal.end() == 130
    finally:
        terminal.close()
    assert json.loads(cli("instances", "show", "slow", "--json").stdout)["status"] == "starting"
    cli("instances", "rm", "-f", "slow")


def test_q_ends_top(cli, cli_agent, weights):
    cli("instances", "create", "--alias", "watched", "--model", weights)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SOLAR_HOST_URL": cli_agent.url, "TERM": "xterm"}
    command = [sys.executable, "-m", "solarhost", "instances", "top", "--interval", "600"]
    terminal = Terminal(command, {**environment, "SOLAR_HOST_KEY": cli_agent.key})
    try:
        terminal.wait_for("watched")
        terminal.type("xq")
        assert terminal.end() == 0
    finally:
        terminal.close()
    cli("instances", "rm", "watched")


def test_the_shell_completes_commands_and_names(cli, cli_agent, weights):
    cli("instances", "create", "--alias", "tab-tab", "--model", weights)
    assert _completed("ins", cli_agent.url, cli_agent.key) == ["instances"]
    assert _completed("instances sto", cli_agent.url, cli_agent.key) == ["stop"]
    assert _completed("instances show tab", cli_agent.url, cli_agent.key) == ["tab-tab"]
    assert _completed("instances update tab-tab --ctx", cli_agent.url, cli_agent.key) == ["--ctx-size"]
    offered = _completed("instances create --al", cli_agent.url, cli_agent.key)
    assert sorted(offered) == ["--alias", "--allow-unknown"]
    assert _completed("instances create --vram", cli_agent.url, cli_agent.key) == ["--vram-gb"]
    assert _completed("instances show tab", cli_agent.url, "not the key") == []
    assert _completed("instances show tab", f"http://127.0.0.1:{free_port()}", cli_agent.key) == []
    cli("instances", "rm", "tab-tab")


def _completed(line: str, url: str, key: str) -> list[str]:
    """What bash is offered at the end of the line."""
    words = f"solar-host {line}"
    result = CliRunner().invoke(
        main,
        prog_name="solar-host",
        env={
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
            "_SOLAR_HOST_COMPLETE": "bash_complete",
            "SOLAR_HOST_URL": url,
            "SOLAR_HOST_KEY": key,
        },
    )
    return [offer.removeprefix("plain,") for offer in result.stdout.splitlines() if offer]


@pytest.mark.parametrize(
    ("word", "meant"), [("ps", "instances ls"), ("logs", "instances logs"), ("instance", "instances")]
)
def test_a_word_that_is_no_command_names_the_one_that_is_meant(cli, word, meant):
    assert f"`solar-host {meant}`" in cli(word, code=2).stderr


def test_the_address_may_come_before_the_command(cli, cli_agent):
    nobody = f"http://127.0.0.1:{free_port()}"
    assert nobody in cli("--url", nobody, "instances", "ls", code=5).stderr
    cli("--url", nobody, "instances", "ls", "--url", cli_agent.url)
    cli("--key", "not the key", "instances", "ls", code=4)
    assert "takes no --url" in cli("--url", nobody, "doctor", code=2).stderr


def test_a_link_that_is_not_wanted_can_not_be_tried_again(cli):
    assert "control" in cli("reconnect", code=1).stderr
