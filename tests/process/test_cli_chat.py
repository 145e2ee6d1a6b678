"""`solar-host chat` with a real model, from a pipe and on a terminal."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from solarhost.cli import main
from tests.agent import ROOT, Agent, wait_until
from tests.terminal import Terminal

LONG = ("chat", "chat", "--temperature", "1", "Count from one to a thousand:")


@pytest.fixture(scope="module")
def talker(shared_agent: Agent, gguf: Path) -> Iterator[Agent]:
    """An agent that serves a real model as `chat`; it answers for ever unless told otherwise."""
    shared_agent.create(
        {"alias": "chat", "model": str(gguf), "host": "127.0.0.1", "ctx_size": 2048,
         "extra_args": ["--ignore-eos"]}
    )  # fmt: skip
    shared_agent.create({"alias": "vectors", "model": str(gguf), "model_type": "embedding"})
    yield shared_agent
    _chat(shared_agent, "instances", "rm", "-f", "chat")


def _address(agent: Agent) -> dict[str, str]:
    return {"SOLAR_HOST_URL": agent.url, "SOLAR_HOST_KEY": agent.key}


def _environment(agent: Agent) -> dict[str, str]:
    return {**os.environ, **_address(agent), "PYTHONPATH": str(ROOT), "TERM": "xterm"}


def _chat(agent: Agent, *arguments: str, stdin: str = "", code: int = 0) -> Result:
    done = CliRunner().invoke(main, arguments, input=stdin, env=_address(agent), prog_name="solar-host")
    assert done.exit_code == code, done.output
    assert agent.key not in done.output
    return done


def test_a_message_and_a_pipe_are_answered(talker):
    assert "start it, or give --start" in _chat(talker, "chat", "chat", "hello", code=1).stderr
    first = _chat(talker, "chat", "chat", "--start", "--max-tokens", "4", "Hello,", "how are you?")
    assert first.stdout.strip()
    assert "cut off" in first.stderr
    whole = _chat(talker, "chat", "chat", "--max-tokens", "3", "--json", stdin="Once upon a time")
    assert json.loads(whole.stdout)["usage"]["completion_tokens"] == 3
    assert "there is no message" in _chat(talker, "chat", "chat", code=2).stderr


def test_what_can_not_be_asked_says_why(talker, tmp_path):
    _chat(talker, "chat", "chat", "--start", "--max-tokens", "1", "hello")
    assert "does not chat, it serves /v1/embeddings" in _chat(talker, "chat", "vectors", "x", code=1).stderr
    assert "did you mean 'chat'" in _chat(talker, "chat", "chta", "x", code=3).stderr
    too_long = _chat(talker, "chat", "chat", stdin="word " * 3000, code=1)
    assert "refuses this: " in too_long.stderr
    (tmp_path / "dot.png").write_bytes(b"\x89PNG")
    picture = _chat(talker, "chat", "chat", "--image", str(tmp_path / "dot.png"), "What is it?", code=1)
    assert "refuses this: " in picture.stderr
    (tmp_path / "notes.txt").write_text("x")
    no_picture = _chat(talker, "chat", "chat", "--image", str(tmp_path / "notes.txt"), "x", code=2)
    assert "not a picture" in no_picture.stderr


def test_a_server_that_dies_in_an_answer(talker):
    _chat(talker, "chat", "chat", "--start", "--max-tokens", "1", "hello")
    asking = subprocess.Popen(
        [sys.executable, "-m", "solarhost", *LONG],
        env=_environment(talker), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert asking.stdout is not None
    asking.stdout.read(1)
    [one] = [one for one in talker.get("/instances").json() if one["config"]["alias"] == "chat"]
    os.kill(one["pid"], signal.SIGKILL)
    error = asking.communicate(timeout=30)[1].decode()
    assert asking.returncode == 1
    assert "the answer of chat broke off" in error
    assert "Traceback" not in error
    talker.wait_for_status(one["id"], "failed")


def test_a_conversation_on_a_terminal(talker):
    terminal = Terminal(
        [sys.executable, "-m", "solarhost", "chat", "chat", "--start", "--temperature", "0"],
        _environment(talker),
    )
    try:
        terminal.wait_for("/help lists the commands")
        terminal.wait_for(">>> ")
        terminal.type("/help\n")
        terminal.wait_for("print this")
        terminal.wait_for(">>> ")
        terminal.type("Count to a thousand\n")
        terminal.wait_for("Count to a thousand\r\n")
        wait_until(lambda: len(terminal.read()) > 20, 30, "an answer")
        terminal.interrupt()
        terminal.wait_for(">>> ")
        terminal.type("/bye\n")
        assert terminal.end() == 0
        assert "Traceback" not in terminal.shown
    finally:
        terminal.close()


def test_ctrl_c_at_the_prompt_ends_it(talker):
    _chat(talker, "chat", "chat", "--start", "--max-tokens", "1", "hello")
    terminal = Terminal([sys.executable, "-m", "solarhost", "chat", "chat"], _environment(talker))
    try:
        terminal.wait_for(">>> ")
        terminal.interrupt()
        assert terminal.end() == 130
        assert "Traceback" not in terminal.shown
    finally:
        terminal.close()
