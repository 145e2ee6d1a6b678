"""How fast log lines are taken in, what that costs the child, and how late a stream gets them.

With a peer (`contrib.bench.peer`), its pipeline reads the same lines in the same run.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread

from contrib.bench import peer
from contrib.bench.figures import OF_PEER, Figure, seconds, show, times
from solarhost.backends.llamacpp_log import LlamaCppActivity
from solarhost.logs.book import LogBook
from solarhost.problems import Problems

LINES = 1000 * times(500)
LINE = "0.09.759.772 I srv  log_server_r: done request: POST /v1/chat/completions 127.0.0.1 200".ljust(99)
PAIRS = times(5, least=2)
PEER_LINES = 20_000
CLIENTS = 20
LATENCY_S = seconds(10.0)
IDLE_TAILS = 50
IDLE_S = seconds(20.0)

# One write a line, as servers that flush each line do. Prints its own wall and processor seconds.
CHILD = """
import os, sys, time
line = sys.argv[2].encode() + b"\\n"
began, used = time.perf_counter(), time.process_time()
for _ in range(int(sys.argv[1])):
    os.write(1, line)
print(time.perf_counter() - began, time.process_time() - used, file=sys.stderr)
"""

WRITER = """
import os, sys, time
due = time.monotonic()
for _ in range(int(float(sys.argv[1]) * 1000)):
    due += 0.001
    time.sleep(max(0.0, due - time.monotonic()))
    os.write(1, b"%d\\n" % time.monotonic_ns())
"""

PEER = """
import subprocess, sys, time
from solar_host.backends.llamacpp import LlamaCppRunner
from solar_host.process_manager import ProcessManager
manager = ProcessManager()
manager._handle_child_exit = lambda *_: None
child = subprocess.Popen(["cat", sys.argv[1]], stdout=subprocess.PIPE)
began = time.perf_counter()
manager._read_logs("a", child, sys.argv[2], LlamaCppRunner())
print(time.perf_counter() - began)
"""


class Followed:
    """One log file that is followed, into memory and a llama-server parser, by a book of its own."""

    def __init__(self, folder: Path, instance_id: str = "a"):
        self.book = LogBook(
            folder=folder,
            buffer_size=1000,
            retained=20,
            retention_s=86400.0,
            file_max_bytes=512 << 20,
            secrets=["an-api-key-0123456789", "a-control-key-0123456789", "hf_0123456789abcdef"],
            publish=lambda _event: None,
            problems=Problems(),
            exists=lambda _id: True,
        )
        self.id = instance_id
        self.path = self.book.begin_run(instance_id, "bench", 1)
        self._activity = LlamaCppActivity()

    def begin(self) -> None:
        self._tail = self.book.follow(self.id, self.path, 1, self._on_lines)

    def end(self) -> None:
        self._tail.finish()
        self._tail.join()

    def _on_lines(self, lines: Sequence[str]) -> None:
        self._activity.feed(lines, datetime.now(UTC))


def measure() -> Iterator[Figure]:
    for part in (child_slowdown, intake, latency, idle):
        with tempfile.TemporaryDirectory(prefix="solarhost-bench-") as name:
            yield from part(Path(name))


def child_slowdown(folder: Path) -> Iterator[Figure]:
    pairs = []
    for number in range(PAIRS):
        plain = _print_lines(folder / "plain.log")
        (folder / "plain.log").unlink()
        followed = Followed(folder / f"logs-{number}")
        followed.begin()
        tailed = _print_lines(followed.path)
        followed.end()
        assert followed.book.stats().lines == LINES
        followed.path.unlink()
        pairs.append((plain, tailed))
    wall = statistics.median(tailed[0] / plain[0] for plain, tailed in pairs)
    used = statistics.median(tailed[1] / plain[1] for plain, tailed in pairs)
    alone = statistics.median(plain[0] for plain, _ in pairs)
    yield Figure(
        name="child_time",
        value=wall,
        unit="of its time with a plain file",
        at_most=1.2,
        note=f"a child that prints {LINES} lines of 100 bytes while they are read, plain {alone:.2f} s, "
        f"processor time {used:.2f}, medians of {PAIRS} in turns",
    )


def intake(folder: Path) -> Iterator[Figure]:
    rates, peer_rates = [], []
    lines = folder / "peer-lines"
    _write(lines, PEER_LINES)
    for number in range(PAIRS):  # the best of each counts: other load can only take away from it
        followed = Followed(folder / f"logs-{number}")
        _write(followed.path, LINES)
        began = time.perf_counter()
        followed.begin()
        followed.end()
        rates.append(LINES / (time.perf_counter() - began))
        assert followed.book.stats().lines == LINES
        followed.path.unlink()
        if peer.PYTHON:
            command = [str(peer.PYTHON), "-c", PEER, str(lines), str(folder / "peer.log")]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
            peer_rates.append(PEER_LINES / float(done.stdout.splitlines()[-1]))
    rate = max(rates)
    yield Figure(
        name="intake",
        value=rate,
        unit="lines/s",
        note=f"numbered, redacted, stored and parsed, best of {PAIRS}",
    )
    if peer_rates:
        yield Figure(
            name="intake_of_peer",
            value=rate / max(peer_rates),
            unit=OF_PEER,
            at_least=20,
            note=f"peer {max(peer_rates):.0f} lines/s, best of {PAIRS} in turns",
        )


def latency(folder: Path) -> Iterator[Figure]:
    followed = Followed(folder)
    followed.begin()
    late: list[float] = []
    clients = [Thread(target=_listen, args=(followed.book, late)) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    with open(followed.path, "ab") as file:
        subprocess.run([sys.executable, "-c", WRITER, str(LATENCY_S)], stdout=file, check=True)
    followed.end()
    time.sleep(0.2)
    followed.book.forget("a")
    for client in clients:
        client.join()
    late.sort()
    expected = CLIENTS * LATENCY_S * 1000
    yield Figure(
        name="line_to_frame_p99",
        value=late[int(0.99 * len(late))],
        unit="ms",
        at_most=50,
        note=f"sockets not included; median {late[len(late) // 2]:.1f}, {len(late)} of {expected:.0f} lines, "
        f"1000 a second, {CLIENTS} readers",
    )


def _listen(book: LogBook, late: list[float]) -> None:
    """Take frames as a stream does, and note how many milliseconds after its write each line came."""
    cursor = book.subscribe("a")
    while not cursor.closed:
        batch = cursor.next(1.0)
        if batch and batch.frames:
            now = time.monotonic_ns()
            late.extend((now - int(line)) / 1e6 for line in batch.lines)


def idle(folder: Path) -> Iterator[Figure]:
    all_followed = [Followed(folder, f"a{number}") for number in range(IDLE_TAILS)]
    for followed in all_followed:
        followed.begin()
    time.sleep(2)
    used = time.process_time()
    time.sleep(IDLE_S)
    percent = 100 * (time.process_time() - used) / IDLE_S
    for followed in all_followed:
        followed.end()
    yield Figure(
        name="idle_tails",
        value=percent,
        unit="% of a core",
        at_most=1,
        note=f"{IDLE_TAILS} files followed; the limit is that of the whole agent",
    )


def _print_lines(path: Path) -> tuple[float, float]:
    with open(path, "ab") as file:
        command = [sys.executable, "-S", "-c", CHILD, str(LINES), LINE]
        done = subprocess.run(
            command,
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            check=True,
            start_new_session=True,  # as the agent starts its children
        )
    wall, used = done.stderr.split()
    return float(wall), float(used)


def _write(path: Path, lines: int) -> None:
    with open(path, "ab") as file:
        for _ in range(lines // 1000):
            file.write((LINE + "\n").encode() * 1000)


if __name__ == "__main__":
    show(measure)
