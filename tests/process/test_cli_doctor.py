"""`doctor` and `config check` on machines that are broken on purpose."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from solarhost.commands.checks.finding import Level
from solarhost.commands.checks.outside import check_control
from solarhost.commands.checks.programs import check_docker
from solarhost.settings import Settings
from tests.agent import ROOT


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


def test_doctor_is_content_with_a_running_agent(agent, llama_server, tmp_path):
    settings = {"API_KEY": agent.key, "PORT": str(agent.port), "LLAMA_SERVER_PATH": str(llama_server)}
    done = _alone(tmp_path, "doctor", MIN_FREE_DISK_GB="0", **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✓ port: the agent" in done.stdout
    assert "✓ llama-server: version" in done.stdout
    assert agent.key not in done.stdout
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


def test_a_control_that_refuses_the_key_or_takes_it(make_control):
    control = make_control(("right",))
    control.do("refuse", key="wrong")

    def found(key: str) -> tuple[str, str]:
        [finding] = check_control(Settings(solar_control_url=control.url, solar_control_api_key=key))
        return finding.level, finding.text

    assert found("wrong") == (Level.RED, f"{control.url} refuses the key")
    assert found("right") == (Level.GREEN, f"registered at {control.url}")
    level, text = found("unknown")
    assert level is Level.YELLOW
    assert "approval" in text


def test_a_docker_socket_that_is_for_others():
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's own is closed to other users
    folder.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener, _as_nobody_later(folder / "d.sock", listener):
        [finding] = check_docker(Settings(docker_host=f"unix://{folder}/d.sock"))
    shutil.rmtree(folder)
    assert finding.level is Level.RED
    assert "may not use" in finding.text
    assert "group docker" in finding.next_step


@contextmanager
def _as_nobody_later(path: Path, listener: socket.socket) -> Iterator[None]:
    """A socket of ours that a user without rights then looks at; root would be let in."""
    listener.bind(str(path))
    listener.listen()
    path.chmod(0o600 if os.geteuid() == 0 else 0)
    me = os.geteuid()
    if me == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if me == 0:
            os.seteuid(me)
