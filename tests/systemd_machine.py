"""A machine of the tests' own that systemd runs: this one's /usr, its own processes, files and network."""

import os
import secrets
import shutil
import signal
import site
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.agent import ROOT, wait_until

BOOTED_WITHIN_S = 60.0
ENDED_WITHIN_S = 30.0
SYSTEMD = "/usr/lib/systemd/systemd"

# As `pip install` into /opt/solar-host makes it, but for where Python and the packages lie.
PROGRAM = f"""\
#!/bin/sh
export PYTHONPATH=/opt/source:/opt/packages LD_LIBRARY_PATH=/opt/python/lib
exec /opt/python/bin/{Path(sys.executable).resolve().name} -m solarhost "$@"
"""
PREPARED = "set -e; PATH=/opt/solar-host/bin:$PATH; cd /opt/source"


class SystemdMachine:
    """A container that boots systemd as its first process; what it writes is in memory.

    It sees the source at /opt/source, and `solar-host` where the service expects it. Needs root, and a
    kernel that allows namespaces and mounts.
    """

    def __init__(self, folder: Path, folders: dict[Path, str]):
        """`folders` are shown read-only, each under the name beside it."""
        programs = folder / "bin"
        programs.mkdir()
        program = programs / "solar-host"
        program.write_text(PROGRAM)
        for path in (folder, programs, program):
            path.chmod(0o755)
        self._folders = {
            **folders,
            programs: "/opt/solar-host/bin",
            **{ROOT / name: f"/opt/source/{name}" for name in ("solarhost", "hf_server", "contrib")},
            Path(sys.base_prefix): "/opt/python",
            Path(site.getsitepackages()[0]): "/opt/packages",
        }
        self._log = folder / "nspawn.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._first = 0  # systemd's pid, as this machine counts

    def boot(self) -> None:
        if os.geteuid() != 0 or shutil.which("systemd-nspawn") is None:
            pytest.fail("The tests of the service boot systemd: they need root and systemd-container")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "systemd-nspawn",
                    "--directory=/",
                    "--volatile=yes",
                    "--boot",
                    f"--machine=solar-{secrets.token_hex(4)}",
                    "--register=no",
                    "--keep-unit",
                    "--console=pipe",
                    "--private-network",
                    *(f"--bind-ro={path}:{name}" for path, name in self._folders.items()),
                    "systemd.unit=basic.target",
                    "systemd.mask=docker.socket",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._is_booted, BOOTED_WITHIN_S, "systemd to boot")

    def run(self, script: str, *, check: bool = True) -> str:
        """What a shell prints that runs `script` in the source's folder, as root; output and errors."""
        done = subprocess.run(
            ["nsenter", f"--target={self._first}", "--all", "bash", "-c", f"{PREPARED}; {script}"],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},  # not ours, whose files aren't there
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            check=False,
        )
        assert not check or done.returncode == 0, f"{script}\n{done.stdout}\n{self.journal()}"
        return done.stdout

    def journal(self) -> str:
        """Newest lines of the service's log."""
        return self.run("journalctl --no-pager --unit solar-host --lines 60", check=False)

    def end(self) -> None:
        """At once, with all that runs there."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.kill(self._first or self._process.pid, signal.SIGKILL)
        self._process.wait(ENDED_WITHIN_S)

    def _is_booted(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            pytest.skip(
                f"this kernel does not let systemd-nspawn boot: {self._log.read_text(errors='replace')}"
            )
        if not self._first:
            children = psutil.Process(self._process.pid).children()
            self._first = next((child.pid for child in children if SYSTEMD in child.cmdline()), 0)
            return False
        return "active" in self.run("systemctl is-active basic.target", check=False).split()
