"""The program to beat, `solar-host` from PyPI: in an environment of its own, and beside our packages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from contrib.setup.steps import alone, cache, run, say

NAME = "solar-host==3.8.3"
NEEDS = "3.12"
_QUIET = {"PIP_ROOT_USER_ACTION": "ignore"}
SERVER_NEEDS = ("fastapi", "uvicorn")  # what its model server imports beside torch and transformers


def ensure_peer() -> Path | None:
    """The virtual environment with the peer, made the first time; None, with a line, without its Python.

    Raises:
        SystemExit: pip failed; its last lines were printed.
    """
    home = cache() / NAME.replace("==", "-")
    if _is_whole(home):
        return home
    python = find_python()
    if python is None:
        say(f"No Python {NEEDS} is found, which {NAME} needs: measuring us alone (PYTHON_OF_PEER names one)")
        return None
    with alone("peer"):
        if not _is_whole(home):
            run(f"Making an environment for {NAME}", [str(python), "-m", "venv", "--clear", str(home)])
            run(f"Installing {NAME}", [*_pip(home / "bin/python"), NAME], _QUIET)
            _mark_whole(home)
    return home


def ensure_peer_site() -> Path | None:
    """A folder with the peer's model server and what it needs, to run on our torch and transformers.

    Raises:
        SystemExit: pip failed; its last lines were printed.
    """
    version = "{}.{}".format(*sys.version_info)
    site = cache() / f"{NAME.replace('==', '-')}-site-{version}"
    with alone("peer-site"):
        if not _is_whole(site):
            shutil.rmtree(site, ignore_errors=True)
            into = [*_pip(Path(sys.executable)), "--target", str(site)]
            run(f"Installing what the model server of {NAME} needs", [*into, *SERVER_NEEDS], _QUIET)
            run(f"Installing {NAME}", [*into, "--no-deps", "--ignore-requires-python", NAME], _QUIET)
            _mark_whole(site)
    return site


def find_python() -> Path | None:
    """PYTHON_OF_PEER, one on PATH, or one that pyenv has."""
    named = os.environ.get("PYTHON_OF_PEER")
    pyenv = sorted((Path.home() / ".pyenv/versions").glob(f"{NEEDS}.*/bin/python{NEEDS}"))
    candidates = [named, shutil.which(f"python{NEEDS}"), f"/usr/bin/python{NEEDS}", *pyenv]
    return next((Path(path) for path in candidates if path and _fits(path)), None)


def _fits(python: str | Path) -> bool:
    code = "import ensurepip, sys, venv; print('{}.{}'.format(*sys.version_info))"
    try:
        told = subprocess.check_output([python, "-c", code], stderr=subprocess.DEVNULL, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return False
    return told.strip() == NEEDS


def _pip(python: Path) -> list[str]:
    return [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--no-input"]


def _is_whole(folder: Path) -> bool:
    return (folder / ".whole").is_file()


def _mark_whole(folder: Path) -> None:
    (folder / ".whole").touch()
