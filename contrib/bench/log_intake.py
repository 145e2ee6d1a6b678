"""How fast log lines are taken in, what that costs the child, and how late a stream gets them.

`python -m contrib.bench.log_intake [PEER_PYTHON]`: the second is a Python that has the package
`solar-host` 3.8.3, whose own pipeline then reads the same lines in the same run.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread

from solarhost.backends.llamacpp_log import LlamaCppActivity
from solarhost.logs.book import LogBook
from solarhost.problems import Problems

LINES = 500_000
LINE = "0.09.759.772 I srv  log_server_r: done request: POST /v1/chat/completions 127.0.0.1 200".ljust(99)
PAIRS = 5
PEER_LINES = 20_000
CLIENTS = 20
LATENCY_S = 10.0
IDLE_TAILS = 50
IDLE_S = 20.0

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


def main() -> None:
    peer = sys.argv[1] if len(sys.argv) > 1 else None
    for measure in (child_slowdown, lambda folder: intake(folder, peer), latency, idle):
        with tempfile.TemporaryDirectory(prefix="solarhost-bench-") as name:
            measure(Path(name))


def child_slowdown(folder: Path) -> None:
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
    print(
        f"child_time_ratio {wall:.2f} (limit 1.20): {LINES} lines of 100 bytes with the agent reading them "
        f"against a plain file ({alone:.2f} s), processor time {used:.2f}, medians of {PAIRS} in turns"
    )


def intake(folder: Path, peer: str | None) -> None:
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
        if peer:
            command = [peer, "-c", PEER, str(lines), str(folder / "peer.log")]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
            peer_rates.append(PEER_LINES / float(done.stdout.splitlines()[-1]))
    rate = max(rates)
    if not peer:
        print(f"intake_lines_per_s {rate:.0f} (no peer given)")
        return
    print(
        f"intake_ratio {rate / max(peer_rates):.0f} (at least 20): {rate:.0f} lines a second numbered, "
        f"redacted, stored and parsed; solar-host 3.8.3 {max(peer_rates):.0f}; best of {PAIRS} in turns"
    )


def latency(folder: Path) -> None:
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
    print(
        f"line_to_frame_p99_ms {late[int(0.99 * len(late))]:.1f} (limit 50, sockets not included): "
        f"median {late[len(late) // 2]:.1f} ms, {len(late)} of {expected:.0f} lines, 1000 a second, "
        f"{CLIENTS} readers"
    )


def _listen(book: LogBook, late: list[float]) -> None:
    """Take frames as a stream does, and note how many milliseconds after its write each line came."""
    cursor = book.subscribe("a")
    while not cursor.closed:
        batch = cursor.next(1.0)
        if batch and batch.frames:
            now = time.monotonic_ns()
            late.extend((now - int(line)) / 1e6 for line in batch.lines)


def idle(folder: Path) -> None:
    all_followed = [Followed(folder, f"a{number}") for number in range(IDLE_TAILS)]
    for followed in all_followed:
        followed.begin()
    time.sleep(2)
    used = time.process_time()
    time.sleep(IDLE_S)
    percent = 100 * (time.process_time() - used) / IDLE_S
    for followed in all_followed:
        followed.end()
    print(f"idle_tails_percent {percent:.3f} of a core (whole agent: limit 1): {IDLE_TAILS} files followed")


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
    main()
