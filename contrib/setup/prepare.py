"""Get everything that `make run` or `make test` needs: `python -m contrib.setup.prepare run|test`."""

import sys

from contrib.setup.llama_server import ensure_llama_server
from contrib.setup.models import ensure_gguf
from contrib.setup.python_packages import ensure_packages
from contrib.setup.steps import say
from contrib.setup.system import ensure_programs

TEST_PROGRAMS = ("g++", "dockerd", "docker-registry", "busybox", "curl", "ip", "jq", "openssl")


def main(purpose: str) -> None:
    ensure_packages()
    if purpose == "test":
        ensure_programs(TEST_PROGRAMS)
    say(f"llama-server: {ensure_llama_server()}")
    say(f"model: {ensure_gguf()}")


if __name__ == "__main__":
    main(sys.argv[1])
