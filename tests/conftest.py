"""What tests share: the real servers and models, and a running agent."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from contrib.setup.llama_server import ensure_llama_server
from contrib.setup.models import ensure_gguf
from tests.agent import Agent, free_port

AgentFactory = Callable[..., Agent]
Exhausted = Callable[..., AbstractContextManager[None]]

# The same examples each time, so that a red test is the fault of a change; `--hypothesis-profile=long` looks
# further (with `--timeout=0`; `FUZZ_EXAMPLES` of each test).
COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}
settings.register_profile("same", derandomize=True, max_examples=30, **COMMON)
settings.register_profile("long", max_examples=int(os.environ.get("FUZZ_EXAMPLES", "5000")), **COMMON)
settings.load_profile("same")


@pytest.fixture(scope="session")
def llama_server() -> Path:
    """A real `llama-server`; `make test` got it."""
    return ensure_llama_server()


@pytest.fixture(scope="session")
def gguf() -> Path:
    """A small real language model (270 million weights, a second to load)."""
    return ensure_gguf()


@pytest.fixture
def exhausted(monkeypatch: pytest.MonkeyPatch) -> Exhausted:
    """Within its block no thread can be started, as where RLIMIT_NPROC or a control group says so.

    Given a prefix, only threads whose names begin with it.
    """
    begin = threading._start_new_thread  # type: ignore[attr-defined]

    def refuse(prefix: str, target: Any, *rest: Any) -> int:
        if target.__self__.name.startswith(prefix):
            raise RuntimeError("can't start new thread")
        return int(begin(target, *rest))

    @contextmanager
    def block(prefix: str = "") -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(threading, "_start_new_thread", partial(refuse, prefix))
            yield

    return block


@pytest.fixture
def port() -> int:
    """A port that is free right now."""
    return free_port()


@pytest.fixture
def make_agent(tmp_path: Path, llama_server: Path) -> Iterator[AgentFactory]:
    """Makes agents, not started yet; keywords are settings. Each has to end without leaving anything."""
    with _agents(tmp_path, llama_server) as make:
        yield make


@pytest.fixture
def agent(make_agent: AgentFactory) -> Agent:
    """A running agent with an empty folder."""
    agent = make_agent()
    agent.start()
    return agent


@pytest.fixture(scope="module")
def shared_agents(tmp_path_factory: pytest.TempPathFactory, llama_server: Path) -> Iterator[AgentFactory]:
    """As `make_agent`, for all tests of a file, where they don't disturb each other."""
    with _agents(tmp_path_factory.mktemp("shared"), llama_server) as make:
        yield make


@pytest.fixture(scope="module")
def shared_agent(shared_agents: AgentFactory) -> Agent:
    """A running agent for all tests of a file."""
    agent = shared_agents()
    agent.start()
    return agent


@contextmanager
def _agents(folder: Path, llama_server: Path) -> Iterator[AgentFactory]:
    agents: list[Agent] = []

    def make(**settings: str) -> Agent:
        place = folder / f"agent-{len(agents)}"
        place.mkdir()
        agents.append(Agent(place, {"LLAMA_SERVER_PATH": str(llama_server), **settings}))
        return agents[-1]

    yield make
    for agent in agents:
        agent.end()
