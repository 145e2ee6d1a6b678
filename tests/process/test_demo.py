"""`make run`, once everything is installed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import requests

from contrib.setup.demo import last_words, note
from contrib.setup.steps import newest_line
from solarhost.settings import read
from tests.agent import free_port, wait_until

ROOT = Path(__file__).resolve().parents[2]
KEY = "key-of-the-demo"


def start_demo(folder: Path, port: int, llama_server: Path) -> subprocess.Popen[str]:
    settings = {
        "API_KEY": KEY,
        "LLAMA_SERVER_PATH": str(llama_server),
        "PORT": str(port),
        "START_PORT": str(free_port()),
        "CONFIG_FILE": str(folder / "config.json"),
        "LOG_DIR": str(folder / "logs"),
        "MODELS_DIR": str(folder / "models"),
        "JOBS_DIR": str(folder / "jobs"),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "contrib.setup.demo"],
        cwd=ROOT,
        env={**os.environ, **settings},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def read_until(demo: subprocess.Popen[str], text: str) -> str:
    assert demo.stdout is not None
    lines = []
    for line in demo.stdout:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError(f"it ended without {text!r}: {''.join(lines)}")


def test_the_demo_answers_a_question_keeps_serving_and_stops(tmp_path, llama_server, gguf):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    headers = {"X-API-Key": KEY}
    demo = start_demo(tmp_path, port, llama_server)
    try:
        said = read_until(demo, "Ctrl-C stops")
        assert "Model: Paris" in said
        for told in (
            f"{url}/docs",
            f"{url}/ui/",
            "solar-host chat",
            "solar-host doctor",
            "docs/first-model.md",
        ):
            assert told in said
        near, far = (float(line.split()[0]) for line in said.splitlines() if line.startswith("      "))
        assert near > far + 0.3, "a kitten is nearer to a cat than the stock market"
        instances = requests.get(f"{url}/instances", headers=headers, timeout=30).json()
        assert [instance["status"] for instance in instances] == ["running", "running"]
        again = start_demo(tmp_path, port, llama_server)
        said = again.communicate(timeout=60)[0]
        assert (again.returncode, "Model: Paris" in said) == (0, True), said
        assert len(requests.get(f"{url}/instances", headers=headers, timeout=30).json()) == 2
    finally:
        demo.send_signal(signal.SIGINT)
        rest = demo.communicate(timeout=60)[0]
    assert demo.returncode == 0, rest
    assert "`.venv/bin/solar-host` in this folder starts them again" in rest
    wait_until(lambda: not any(_is_alive(i["pid"]) for i in instances), 10, "the servers to be gone")


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_setting_that_is_wrong_is_named(tmp_path):
    environment = {**os.environ, "API_KEY": KEY, "PORT": "no-number", "LOG_DIR": str(tmp_path / "logs")}
    done = subprocess.run(
        [sys.executable, "-m", "contrib.setup.demo"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "PORT='no-number' is not valid" in done.stderr


def test_a_setting_is_added_to_the_env_file_for_its_owner_alone(tmp_path, monkeypatch):
    for name in ("PORT", "LLAMA_SERVER_PATH"):
        monkeypatch.setenv(name, "")  # so that what is read from the file is undone, too
        monkeypatch.delenv(name)
    env_file = tmp_path / ".env"
    env_file.write_text("PORT=8123")  # without an end of line
    note(env_file, "LLAMA_SERVER_PATH", "'/a folder/llama-server'")
    settings = read(env_file)
    assert (settings.port, settings.llama_server_path) == (8123, "/a folder/llama-server")
    assert env_file.stat().st_mode & 0o777 == 0o600


def test_a_killed_agent_is_told_from_one_that_ended():
    assert "may still run" in last_words(-9)
    assert "its log says why" in last_words(1)


def test_progress_is_the_newest_line_without_warnings(tmp_path):
    log = tmp_path / "log"
    log.write_text("Collecting flask\n\nWARNING: a retry\n")
    assert newest_line(log) == "Collecting flask"
    log.write_text("WARNING: a retry\n")
    assert newest_line(log) == ""
