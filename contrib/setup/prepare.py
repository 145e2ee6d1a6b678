"""Get everything that a target of the Makefile needs: `python -m contrib.setup.prepare run|test|…`."""

import sys

from contrib.setup.llama_server import ensure_llama_server
from contrib.setup.models import ensure_gguf
from contrib.setup.python_packages import ensure_packages
from contrib.setup.steps import say
from contrib.setup.system import ensure_programs

PROGRAMS = {
    "run": (),
    "test": (
        "g++",
        "dockerd",
        "docker-registry",
        "busybox",
        "chromium",
        "curl",
        "ip",
        "jq",
        "openssl",
        "prometheus",
        "systemd-analyze",
        "systemd-nspawn",
    ),
    "chaos": ("g++", "dockerd", "docker-registry", "busybox", "ip", "openssl"),
    "bench": ("chromium", "dockerd", "docker-registry", "busybox", "ip", "openssl", "wrk"),
}


def main(purpose: str) -> None:
    ensure_packages()
    ensure_programs(PROGRAMS[purpose])
    say(f"llama-server: {ensure_llama_server()}")
    say(f"model: {ensure_gguf()}")


if __name__ == "__main__":
    main(sys.argv[1])
