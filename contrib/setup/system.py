"""Programs that come from the operating system."""

import os
import shutil
from collections.abc import Iterable

from contrib.setup.steps import run

# Program and the Debian package that brings it.
PACKAGES = {
    "g++": "g++",
    "dockerd": "docker.io",
    "docker-registry": "docker-registry",
    "busybox": "busybox-static",
    "chromium": "chromium",
    "curl": "curl",
    "ip": "iproute2",
    "jq": "jq",
    "openssl": "openssl",
    "prometheus": "prometheus",
    "systemd-analyze": "systemd",
    "systemd-nspawn": "systemd-container",
    "wrk": "wrk",
}
_SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"  # not on every user's PATH


def find_program(name: str) -> str | None:
    """Its path, or None."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_PATH}")


def ensure_programs(names: Iterable[str]) -> None:
    """Install the Debian packages of those programs that are missing.

    Raises:
        SystemExit: some are missing and can't be installed here; names them.
    """
    missing = [PACKAGES[name] for name in names if find_program(name) is None]
    if not missing:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SystemExit(f"These packages are missing: {' '.join(missing)}. As root: {' '.join(command)}")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    run("Reading the list of Debian packages", ["apt-get", "update"], quiet)
    run(f"Installing Debian packages: {' '.join(missing)}", command, quiet)
