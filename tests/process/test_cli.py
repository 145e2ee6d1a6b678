"""The command line against a real agent over real HTTP, and `doctor` on machines broken on purpose."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from solarhost.cli import main
from tests.agent import ROOT, Agent, wait_until

FAKE = ROOT / "tests" / "process" / "fake_llama.py"
Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """An agent whose instances are the scripted server."""
    folder = tmp_path_factory.mktemp("cli")
    agent = Agent(folder, {"LLAMA_SERVER_PATH": str(FAKE), "MAX_RETRIES": "0"})
    agent.start()
    yield agent
    agent.end()


@pytest.fixture
def cli(served: Agent) -> Cli:
    def run(*arguments: str, code: int = 0, stdin: str | None = None, key: str = served.key) -> Result:
        environment = {"SOLAR_HOST_URL": served.url, "SOLAR_HOST_KEY": key}
        result = CliRunner().invoke(main, arguments, input=stdin, env=environment, prog_name="solar-host")
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        assert served.key not in result.output
        return result

    return run


@pytest.fixture
def weights(tmp_path: Path) -> str:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    return str(tmp_path / "model.gguf")


def test_an_instance_from_creation_to_removal(cli, weights):
    flags = ["--alias", "life", "--model", weights, "--ctx-size", "4096", "--extra-args=--lines=30"]
    made = json.loads(cli("instances", "create", *flags, "--json").stdout)
    assert made["config"]["ctx_size"] == 4096
    assert made["config"]["extra_args"] == ["--lines=30"]
    assert "started" in cli("instances", "start", made["id"][:6]).stdout
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
    assert "is running" in cli("instances", "rm", "life", code=1).stderr
    cli("instances", "restart", "life")
    assert json.loads(cli("instances", "show", "life", "--json").stdout)["run"] == 2
    cli("instances", "stop", "life")
    cli("instances", "rm", "life")
    assert json.loads(cli("instances", "ls", "--json").stdout) == []
    assert "line 29" in cli("instances", "logs", made["id"]).stdout  # its file is still there


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
    cli("instances", "create", code=2)
    cli("instances", "rm", made["id"])


def test_a_failed_start_shows_the_end_of_the_log(cli, weights):
    cli("instances", "create", "--alias", "broken", "--model", weights, "--extra-args=--exit=3")
    failed = cli("instances", "start", "broken", code=1)
    assert "it will not work" in failed.stderr
    assert "Hint: " in failed.stderr
    cli("instances", "rm", "broken")


def test_a_name_that_fits_nothing_or_several(cli, weights):
    for _ in range(2):
        cli("instances", "create", "--alias", "twin", "--model", weights)
    assert "2 instances" in cli("instances", "start", "twin", code=2).stderr
    assert "did you mean 'twin'" in cli("instances", "show", "twim", code=3).stderr
    cli("jobs", "show", "nothing", code=3)
    cli("models", "rm", "nothing", code=3)
    ids = [one["id"] for one in json.loads(cli("instances", "ls", "--json").stdout)]
    cli("instances", "rm", *ids)


def test_reservations_and_resources(cli):
    made = cli("reservations", "create", "--job-id", "j1", "--ram-gb", "0.25", "--ttl", "2h").stdout.strip()
    assert "j1" in cli("reservations", "ls").stdout
    assert "RAM" in cli("resources").stdout
    assert json.loads(cli("resources", "--json").stdout)["reservations"][0]["id"] == made
    too_much = cli("reservations", "create", "--job-id", "j2", "--ram-gb", "999999", code=1)
    assert "999999" in too_much.stderr
    cli("reservations", "rm", made[:8])
    assert "No reservations" in cli("reservations", "ls").stdout


def test_a_refused_pull_says_why(cli):
    assert "--ref" in cli("models", "pull", "repo://m:1", code=2).stderr
    assert "No models" in cli("models", "ls").stdout
    assert "HARBOR" in cli("models", "pull", "repo://m:1", "--ref", "p/m:1", code=1).stderr


def test_a_wrong_key_and_something_that_is_no_agent(cli):
    assert "does not accept this key" in cli("instances", "ls", code=4, key="wrong").stderr
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert "no agent answers" in cli("instances", "ls", "--url", f"http://127.0.0.1:{port}", code=5).stderr


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


def _alone(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A command in a folder of its own, where there is neither torch nor a Docker."""
    (folder / "broken").mkdir(exist_ok=True)
    (folder / "broken" / "torch.py").write_text("raise ImportError('libcuda is missing')")
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder / 'broken'}:{ROOT}",
        "DOCKER_HOST": f"unix://{folder}/docker.sock",
        **settings,
    }
    return subprocess.run(
        [sys.executable, "-m", "solarhost", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_doctor_finds_what_is_broken(tmp_path, port):
    (tmp_path / "models").write_text("a file in the place of the folder")
    server = tmp_path / "llama-server"
    server.write_text("#!/bin/sh\necho 'error while loading shared libraries: libggml.so'\nexit 127\n")
    server.chmod(0o755)
    with socket.create_server(("0.0.0.0", port)):
        done = _alone(
            tmp_path,
            "doctor",
            "--json",
            HOST="0.0.0.0",
            PORT=str(port),
            LLAMA_SERVER_PATH=str(server),
            MIN_FREE_DISK_GB="9999999",
            SOLAR_CONTROL_URL=f"http://127.0.0.1:{port}",
            HARBOR_URL="https://registry.test",
        )
    assert done.returncode == 1, done.stderr
    found = {one["check"]: one for one in json.loads(done.stdout)}
    assert "API_KEY is not set" in found["settings"]["text"]
    assert "is taken" in found["port"]["text"]
    assert "is not a folder" in found["folders"]["text"]
    assert "shared libraries" in found["llama-server"]["text"]
    assert "libcuda is missing" in found["torch"]["text"]
    assert {name for name, one in found.items() if one["level"] == "red"} == {
        "settings", "port", "folders", "llama-server", "control",
    }  # fmt: skip
    assert {name for name, one in found.items() if one["level"] == "yellow"} >= {
        "disk",
        "torch",
        "docker",
        "registry",
    }
    assert all(one["next_step"] for one in found.values() if one["level"] != "green")


def test_doctor_is_content_with_a_running_agent(served, llama_server, tmp_path):
    settings = {"API_KEY": served.key, "PORT": str(served.port), "LLAMA_SERVER_PATH": str(llama_server)}
    done = _alone(tmp_path, "doctor", MIN_FREE_DISK_GB="0", **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✓ port: the agent" in done.stdout
    assert "✓ llama-server: version" in done.stdout
    assert served.key not in done.stdout
    refused = _alone(
        tmp_path, "doctor", **{**settings, "API_KEY": "another", "LLAMA_SERVER_PATH": "/nowhere"}
    )
    assert refused.returncode == 1
    assert "refuses API_KEY" in refused.stdout
    assert "is not an executable file" in refused.stdout


def test_settings_are_checked_without_a_start(tmp_path):
    (tmp_path / ".env").write_text("API_KEY=hidden-key\nMODEL_DIR=x\nMAX_JOBS=2\n")
    good = _alone(tmp_path, "config", "check")
    assert good.returncode == 0, good.stderr
    assert "did you mean MODELS_DIR" in good.stderr
    assert "hidden-key" not in good.stdout + good.stderr
    assert "MAX_JOBS" in good.stdout
    wrong = _alone(tmp_path, "config", "check", PORT="http")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("Error: PORT='http' is not valid")
