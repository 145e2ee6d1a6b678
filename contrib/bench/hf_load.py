"""Servers under load for the HuggingFace measurements: how they are started, asked and watched.

`PEER_SITE`, where set, is a folder with the packages that the peer's server needs beside ours; `make bench`
makes one (`contrib.setup.peer`). It runs under this interpreter, with the same torch and transformers. What
`transformers serve` needs is there too, or here.

On a machine with other work on it, the processor time is the better witness, and `OMP_NUM_THREADS=1` the
fairer race: torch's threads spin while they wait for each other, ours too until they give way.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import psutil

from contrib.bench.figures import OF_PEER, Figure
from tests.agent import ROOT, free_port

KEY = "bench"
PEER_SITE = os.environ.get("PEER_SITE")
READY_WITHIN_S = 300
SETTLED_WITHIN_S = 10
LOOK_S = 0.2
HEADERS = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}


@dataclass(frozen=True)
class Running:
    """A started server."""

    name: str
    port: int
    process: psutil.Process
    model: str = "bench"

    def peak_mib(self) -> float:
        """Highest resident memory so far of its largest process, and what the others have for themselves."""
        sizes = []
        for process in self._processes():
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
            sizes.append((peak / 1024, process.memory_full_info().uss / 1024**2))
        sizes.sort()
        return sizes[-1][0] + sum(own for _, own in sizes[:-1])

    def cpu_s(self) -> float:
        """Processor time of all its processes so far."""
        return sum(sum(process.cpu_times()[:2]) for process in self._processes())

    def settle(self) -> None:
        """Wait until it has done with what clients left behind when their time was over."""
        deadline = time.monotonic() + SETTLED_WITHIN_S
        used_s = -1.0
        while self.cpu_s() - used_s > LOOK_S / 10 and time.monotonic() < deadline:
            used_s = self.cpu_s()
            time.sleep(LOOK_S)

    def _processes(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]


class Caller:
    """One client with one connection that it keeps."""

    def __init__(self, port: int):
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)

    def post(self, path: str, body: bytes) -> bytes:
        self._connection.request("POST", path, body, HEADERS)
        response = self._connection.getresponse()
        data = response.read()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {data[:300]!r}")
        return data

    def get(self, path: str) -> bytes:
        self._connection.request("GET", path, headers=HEADERS)
        return self._connection.getresponse().read()

    def stream(self, path: str, body: bytes) -> Iterator[bytes]:
        """The lines of a streamed answer as they come."""
        self._connection.request("POST", path, body, HEADERS)
        response = self._connection.getresponse()
        yield from iter(response.readline, b"")

    def close(self) -> None:
        self._connection.close()


@contextmanager
def ours(model: Path, kind: str, *arguments: str) -> Iterator[Running]:
    command = ["-m", "hf_server", "--model-id", str(model), "--model-type", kind, *arguments]
    with _server("ours", command, str(ROOT)) as running:
        yield running


@contextmanager
def peer(model: Path, kind: str, *arguments: str) -> Iterator[Running]:
    command = [
        "-m",
        "solar_host.servers.hf_server",
        "--model-id",
        str(model),
        "--model-type",
        kind,
        *arguments,
    ]
    with _server("peer", command, str(PEER_SITE)) as running:
        yield running


@contextmanager
def in_turns(model: Path, kind: str, *arguments: str) -> Iterator[list[Running]]:
    """Ours, and the peer's where it is known."""
    with ExitStack() as stack:
        servers = [stack.enter_context(ours(model, kind, *arguments))]
        if PEER_SITE:
            servers.append(stack.enter_context(peer(model, kind, *arguments)))
        yield servers


@contextmanager
def transformers_serve(model: Path, *arguments: str) -> Iterator[Running]:
    """The server that comes with transformers; it wants to be asked for the model by its folder."""
    program = "from transformers.cli.transformers import main; main()"
    command = ["-c", program, "serve", str(model), "--device", "cpu", *arguments]
    with _started("transformers", command, str(PEER_SITE), str(model)) as running:
        yield running


@contextmanager
def _server(name: str, arguments: Sequence[str], python_path: str) -> Iterator[Running]:
    with _started(name, [*arguments, "--alias", "bench"], python_path) as running:
        yield running


@contextmanager
def _started(
    name: str, arguments: Sequence[str], python_path: str, model: str = "bench"
) -> Iterator[Running]:
    port = free_port()
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            [sys.executable, *arguments, "--host", "127.0.0.1", "--port", str(port)],
            env={**os.environ, "PYTHONPATH": python_path, "SOLAR_API_KEY": KEY, "HF_HUB_OFFLINE": "1"},
            cwd=tempfile.gettempdir(),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_until_ready(port, child, lambda: _tail(output))
            yield Running(name, port, psutil.Process(child.pid), model)
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _tail(output: Any) -> str:
    output.seek(0)
    return str(output.read()[-2000:])


def _wait_until_ready(port: int, child: subprocess.Popen[bytes], log: Callable[[], str]) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise RuntimeError(log())
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            body = json.loads(connection.getresponse().read())
            if body["status"] in ("ok", "healthy"):
                return
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            pass  # not yet
        time.sleep(0.2)
    raise RuntimeError(log())


def in_parallel(work: Callable[[int], None], clients: int) -> float:
    """Run `work(0)` to `work(clients - 1)` at once; seconds until all are done."""
    threads = [Thread(target=work, args=(number,)) for number in range(clients)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - begun


def health_figure(of: str, took: Sequence[float]) -> Figure:
    """From the seconds that `/health` took while the server was busy."""
    return Figure(
        name=f"{of}_health_p99",
        value=1000 * percentile(took, 0.99),
        unit="ms",
        at_most=50,
        note=f"/health while busy, {len(took)} probes",
    )


def memory_figure(of: str, peaks: Mapping[str, float]) -> Figure:
    """From the peaks of both servers, in MiB."""
    return Figure(
        name=f"{of}_memory_of_peer",
        value=peaks["ours"] / peaks["peer"],
        unit=OF_PEER,
        at_most=1.2,
        note=f"peak, ours {peaks['ours']:.0f} MiB, peer {peaks['peer']:.0f} MiB",
    )


def percentile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]
