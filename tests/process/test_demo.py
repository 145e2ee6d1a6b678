"""`make run`, once everything is installed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import requests

from tests.agent import free_port, wait_until

ROOT = Path(__file__).resolve().parents[2]
KEY = "key-of-the-demo"


def start_demo(folder: Path, port: int) -> subprocess.Popen[str]:
    settings = {
        "API_KEY": KEY,
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
    demo = start_demo(tmp_path, port)
    try:
        said = read_until(demo, "Ctrl-C stops")
        assert "Model: Paris" in said
        assert f"{url}/docs" in said
        near, far = (float(line.split()[0]) for line in said.splitlines() if line.startswith("      "))
        assert near > far + 0.3, "a kitten is nearer to a cat than the stock market"
        instances = requests.get(f"{url}/instances", headers=headers, timeout=30).json()
        assert [instance["status"] for instance in instances] == ["running", "running"]
        again = start_demo(tmp_path, port)
        said = again.communicate(timeout=60)[0]
        assert (again.returncode, "Model: Paris" in said) == (0, True), said
        assert len(requests.get(f"{url}/instances", headers=headers, timeout=30).json()) == 2
    finally:
        demo.send_signal(signal.SIGINT)
        rest = demo.communicate(timeout=60)[0]
    assert demo.returncode == 0, rest
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
