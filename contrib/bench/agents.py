"""Agents to measure, each in a folder of its own."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.agent import Agent

IDLE_SERVER = Path(__file__).with_name("idle_server.py")


@contextmanager
def running_agent(**settings: str) -> Iterator[Agent]:
    """A started agent; it and all that it started are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="solarhost-bench-") as name:
        agent = Agent(Path(name), settings)
        try:
            agent.start()
            yield agent
        finally:
            agent.end()


def idle_server(folder: Path, before: str = "") -> Path:
    """An executable stand-in for `llama-server` that is ready at once and then does nothing.

    Args:
        before: a line of shell that is run first.
    """
    path = folder / "llama-server"
    path.write_text(f'#!/bin/sh\n{before}\nexec {sys.executable} -S -E {IDLE_SERVER} "$@"\n')
    path.chmod(0o755)
    return path
