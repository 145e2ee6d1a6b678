"""The agent dies at any moment, the child goes on: no line is missing, doubled or numbered anew."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.logs_world import World, until

ROOT = Path(__file__).parents[2]

# Lines, halves of lines, progress, a long line: as servers print them, for about four seconds.
CHILD = """
import os, time
for number in range(400):
    os.write(1, b"line %d begins, " % number)
    if number % 20 == 0:
        for percent in range(0, 100, 7):
            os.write(1, b"\\r%d%% of part %d" % (percent, number))
            time.sleep(0.004)
    if number % 50 == 0:
        os.write(1, b"w" * 70000)
    time.sleep(0.006)
    os.write(1, b" and ends %d\\n" % number)
"""


def agent(folder, log, out, *options):
    command = [
        sys.executable,
        str(ROOT / "tests" / "logs_agent.py"),
        str(folder),
        str(log),
        str(out),
        *options,
    ]
    return subprocess.Popen(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE)


def child(script, log):
    with open(log, "ab") as file:
        return subprocess.Popen([sys.executable, "-c", script], stdout=file)


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def finals(data: bytes) -> list[str]:
    """What a terminal shows in the end of each line of the file, its too long ones left out."""
    lines = data.decode().split("\n")[:-1]
    return [line.rpartition("\r")[2] for line in lines if len(line) < 1000]


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_agents_show_each_line_once_under_one_number(tmp_path, seed):
    chance = random.Random(seed)
    world = World(tmp_path / "logs")
    log = world.book.begin_run("a1", "model", 1)
    out = tmp_path / "out"
    server = child(CHILD, log)
    kills = 0
    while server.poll() is None:
        victim = agent(world.folder, log, out)
        shown_before = out.stat().st_size if out.exists() else 0
        until(
            lambda before=shown_before: (
                server.poll() is not None or (out.exists() and out.stat().st_size > before)
            )
        )
        time.sleep(chance.uniform(0, 0.7))  # the moment of the kill is meant to be any
        victim.kill()
        victim.wait()
        victim.stdout.close()
        kills += 1
    (world.folder / "child-is-gone").touch()
    last = agent(world.folder, log, out)
    assert last.wait(30) == 0
    last.stdout.close()
    assert kills >= 3

    *shown, summary = [json.loads(line) for line in out.read_text().splitlines() if line.endswith(("]", "}"))]
    by_number: dict[int, str] = {}
    for seq, line in [*shown, *summary["memory"]]:
        assert by_number.setdefault(seq, line) == line  # the same number is always the same line
    assert sorted(by_number) == list(range(len(by_number)))  # none is missing
    lines = [by_number[seq] for seq in sorted(by_number)]
    ends = [line for line in lines if " and ends " in line and "[" not in line and len(line) < 1000]
    assert ends == finals(log.read_bytes())  # each complete line once, in order
    assert [tuple(entry) for entry in summary["memory"]] == sorted(by_number.items())[-1000:]
    world.close()


def test_with_a_full_disk_lines_are_still_shown(tmp_path):
    world = World(tmp_path / "logs")
    log = world.book.begin_run("a1", "model", 1)
    server = child("print('one'); print('two')", log)
    assert server.wait(30) == 0
    (world.folder / "child-is-gone").touch()
    follower = agent(world.folder, log, tmp_path / "out", "no-disk")
    output, _ = follower.communicate(timeout=30)
    first, second, summary = map(json.loads, output.splitlines())
    assert (first, second) == ([0, "one"], [1, "two"])
    assert "could not be written" in summary["problems"][0]
    world.close()


def test_a_flooding_child_loses_nothing(tmp_path):
    world = World(tmp_path / "logs", buffer_size=10)
    log = world.book.begin_run("a1", "model", 1)
    seen: list[str] = []
    tail = world.book.follow("a1", log, 1, seen.extend)
    server = child("for n in range(50_000): print(n, 'x' * 60)", log)
    assert server.wait(60) == 0
    tail.finish()
    tail.join(30)
    assert [int(line.partition(" ")[0]) for line in seen] == list(range(50_000))
    assert [line.seq for line in world.book.read("a1")] == list(range(49_990, 50_000))
    world.close()
