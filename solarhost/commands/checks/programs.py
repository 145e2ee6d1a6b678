"""Programs that the agent starts or is started by: llama-server, torch's Python, Docker, systemd."""

import json
import shutil
import sys
from pathlib import Path

from solarhost.backends.base import CannotStart
from solarhost.backends.llamacpp import LlamaCpp
from solarhost.commands.checks.finding import Finding, Level, Ran, green, red, run, yellow
from solarhost.containers.engine import Engine
from solarhost.containers.errors import EngineAway, EngineRefused
from solarhost.resources.nvml import NvmlGpus
from solarhost.settings import Settings

VERSION_S = 20.0
TORCH_S = 30.0  # a cold import from a slow disk takes half of it
UNIT = "solar-host.service"
TORCH = """\
import json, torch
cuda = torch.cuda.is_available()
mps = torch.backends.mps.is_available()
device = torch.cuda.get_device_name(0) if cuda else "mps" if mps else "cpu"
print(json.dumps({"version": torch.__version__, "device": device, "built_for": torch.version.cuda}))
"""


def check_llama_server(settings: Settings) -> list[Finding]:
    """It is there, and this machine can run it."""
    subject = "llama-server"
    try:
        executable = LlamaCpp(settings.llama_server_path).find_executable()
        ran = run([str(executable), "--version"], VERSION_S)
    except CannotStart as error:
        level = Level.RED if settings.llama_server_path else Level.YELLOW
        why, step = str(error).rpartition(": ")[0], "install llama.cpp, or set LLAMA_SERVER_PATH"
        return [Finding(subject, level, why, step)]
    except OSError as error:
        step = "install a build of llama.cpp for this machine"
        return [red(subject, f"it can't be run: {error.strerror}", step)]
    if ran.code is None:
        return [red(subject, f"{executable} --version does not end", "run it by hand; a driver may hang")]
    if ran.code != 0:
        missing = next((line for line in ran.output.splitlines() if "shared librar" in line), "")
        step = "install the libraries that it was built with, or build it on this machine"
        text = missing or f"--version ends with {ran.code}: {ran.last_line}"
        return [
            red(subject, f"{executable} does not run: {text}", step if missing else "reinstall llama.cpp")
        ]
    version = next((line for line in ran.output.splitlines() if line.startswith("version")), ran.last_line)
    return [green(subject, f"{version} ({executable})")]


def check_torch(_settings: Settings) -> list[Finding]:
    """Which torch HuggingFace instances would get, and the device that it sees."""
    ran = run([sys.executable, "-c", TORCH], TORCH_S)
    install = 'only for HuggingFace models: pip install "solar-host[huggingface]"'
    if ran.code is None:
        step = "run `python -c 'import torch'` by hand; a driver may hang"
        return [yellow("torch", f"not imported within {TORCH_S:.0f} s", step)]
    if ran.code != 0:
        missing = "No module named 'torch'" in ran.output
        text = "not installed" if missing else f"can't be imported: {ran.last_line}"
        return [yellow("torch", text, install if missing else f"reinstall it; {install}")]
    return [_torch(ran)]


def _torch(ran: Ran) -> Finding:
    torch = json.loads(next(line for line in ran.output.splitlines() if line.startswith('{"version"')))
    text = f"{torch['version']} on {torch['device']}"
    if torch["device"] == "cpu" and NvmlGpus().read().devices:
        build = f"it is built for CUDA {torch['built_for']}" if torch["built_for"] else "it is a CPU build"
        step = f"{build}: install one that fits the driver (`nvidia-smi` names its CUDA)"
        return yellow("torch", f"{text}, though there is an NVIDIA GPU", step)
    return green("torch", text)


def check_docker(settings: Settings) -> list[Finding]:
    """Jobs need the engine, permission to use it, and a GPU runtime where there are GPUs."""
    subject, address = "docker", settings.docker_host
    engine = Engine(address)
    try:
        engine.ping()
        runtimes = engine.runtimes()
    except EngineAway as error:
        if "No such file" in error.why:
            step = "only for jobs: install and start Docker, or set DOCKER_HOST"
            return [yellow(subject, f"there is no socket {address}", step)]
        if "ermission" in error.why:
            step = "add this user to the group docker (`usermod -aG docker USER`) and log in anew"
            return [red(subject, f"this user may not use {address}", step)]
        return [red(subject, f"{address} does not answer: {error.why}", "start it: `systemctl start docker`")]
    except EngineRefused as error:
        return [red(subject, str(error), "see the log of Docker: `journalctl -u docker`")]
    found = [green(subject, f"answers at {address}")]
    if "nvidia" in runtimes:
        found.append(green("docker GPUs", "the NVIDIA runtime is there"))
    elif NvmlGpus().read().devices:
        step = "install the NVIDIA Container Toolkit and run `nvidia-ctk runtime configure`"
        found.append(yellow("docker GPUs", "no NVIDIA runtime, so jobs get no GPU", step))
    return found


def check_nvml(settings: Settings) -> list[Finding]:
    """What tells of GPUs."""
    if settings.gpu_telemetry_override is not None:
        step = "for development only: remove GPU_TELEMETRY_OVERRIDE"
        return [yellow("GPUs", "the settings stand in for NVML", step)]
    reading = NvmlGpus().read()
    if reading.problem:
        return [yellow("GPUs", reading.problem, "check the driver with `nvidia-smi`")]
    if not reading.devices:
        return [green("GPUs", "no NVIDIA GPU in this machine")]
    return [green("GPUs", ", ".join(f"{gpu.index}: {gpu.name}" for gpu in reading.devices))]


def check_systemd(_settings: Settings) -> list[Finding]:
    """Whether the agent comes back at boot."""
    if shutil.which("systemctl") is None or not Path("/run/systemd/system").is_dir():
        return [green("systemd", "does not run this machine; have your supervisor run `solar-host`")]
    ran = run(["systemctl", "show", UNIT, "--property=LoadState,ActiveState,UnitFileState"], VERSION_S)
    state = dict(line.partition("=")[::2] for line in ran.output.splitlines())
    if state.get("LoadState") != "loaded":
        step = "to have the agent started at boot: contrib/systemd/install.sh (docs/systemd.md)"
        return [yellow("systemd", f"there is no {UNIT}", step)]
    text = f"{UNIT} is {state.get('ActiveState')}, {state.get('UnitFileState')}"
    if state.get("UnitFileState") != "enabled" or state.get("ActiveState") != "active":
        return [yellow("systemd", text, f"`systemctl enable --now {UNIT}`; its log: `journalctl -u {UNIT}`")]
    return [green("systemd", text)]
