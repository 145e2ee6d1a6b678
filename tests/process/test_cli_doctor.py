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

import pytest

from solarhost.commands.checks import programs
from solarhost.commands.checks.finding import Level
from solarhost.commands.checks.host import check_disk, check_folders
from solarhost.commands.checks.outside import check_control
from solarhost.commands.checks.programs import check_docker
from solarhost.settings import Settings
from tests.agent import ROOT


def _alone(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A command in a folder of its own, where there is neither torch nor a Docker."""
    if not (folder / "broken").exists():
        (folder / "broken").mkdir()
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


def test_doctor_finds_what_is_broken(tmp_path, port, llama_server):
    (tmp_path / "models").write_text("a file in the place of the folder")
    server = tmp_path / "llama-server"
    shutil.copy(llama_server, server)  # without the libraries beside it
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
    assert "error while loading shared libraries: lib" in found["llama-server"]["text"]
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


def test_doctor_on_a_machine_where_nothing_is_installed(tmp_path, port):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    done = _alone(tmp_path, "doctor", PATH="/nowhere", PORT=str(port), MIN_FREE_DISK_GB="0")
    assert done.returncode == 0, done.stdout + done.stderr  # an agent would run, though nothing with it
    assert f"✓ port: {port} on 127.0.0.1 is free" in done.stdout
    assert "! settings: valid, with the default key on 127.0.0.1" in done.stdout
    assert "! llama-server: llama-server is neither on PATH" in done.stdout
    assert "! torch: not installed → only for HuggingFace models: pip install" in done.stdout
    assert "! docker: there is no socket" in done.stdout


def test_a_disk_that_is_nearly_full(small_disk):
    (small_disk / "weights").write_bytes(b"x" * (1 << 20))
    [finding] = check_disk(_in(small_disk))
    assert finding.level is Level.RED
    assert "0.0 GiB free" in finding.text


def test_folders_that_can_not_be_written(small_disk):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    found = check_folders(_in(small_disk))
    assert [finding.level for finding in found] == [Level.RED] * 4
    assert found[0].text == f"MODELS_DIR: {small_disk} can't be written: Read-only file system"
    assert "MODELS_DIR" in found[0].next_step


def test_a_torch_that_hangs_ends_nothing(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("import threading; threading.Event().wait()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(programs, "TORCH_S", 1.0)
    [finding] = programs.check_torch(Settings())
    assert finding.level is Level.YELLOW
    assert "not imported within 1 s" in finding.text


def test_doctor_tells_what_a_running_agent_finds_wrong(make_agent, tmp_path):
    agent = make_agent(DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    (agent.folder / "config.json").write_text("{ broken")
    agent.start()
    [problem] = agent.get("/health").json()["problems"]
    done = _alone(tmp_path, "doctor", "--json", API_KEY=agent.key, PORT=str(agent.port))
    found = [one for one in json.loads(done.stdout) if one["check"] == "agent"]
    assert [(one["level"], one["text"]) for one in found] == [("yellow", problem)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 2 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def _in(folder: Path) -> Settings:
    names = {name: folder / name for name in ("models_dir", "log_dir", "jobs_dir")}
    return Settings(**names, config_file=folder / "config.json")


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
    good = _alone(tmp_path, "config", "check", LLAMA_SERVER_PATH="/nowhere")
    assert good.returncode == 0, good.stderr
    assert "did you mean MODELS_DIR" in good.stderr
    assert "Warning: llama.cpp instances can't start: LLAMA_SERVER_PATH=/nowhere is not" in good.stderr
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
