"""From the write of a log line to its arrival at a WebSocket client: p99 at most 50 ms.

A child prints 1,000 lines a second and 20 clients follow them.
"""

import re
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from contrib.bench.agents import running_agent
from contrib.bench.figures import Figure, seconds, show
from tests.agent import Agent

CLIENTS = 20
SETTLE_S = 2.0
MEASURED_S = seconds(15.0)
LINE = re.compile(rb"written at (\d+) ns")


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        server, model = Path(name) / "llama-server", Path(name) / "model.gguf"
        lines = Path(__file__).with_name("clock_lines.py")
        server.write_text(f"#!/bin/sh\nexec {sys.executable} -S -E {lines}\n")
        server.chmod(0o755)
        model.write_bytes(b"GGUF")
        agent = stack.enter_context(running_agent(LLAMA_SERVER_PATH=str(server)))
        starts = stack.enter_context(ThreadPoolExecutor(1))
        instance_id = agent.create({"model": str(model), "alias": "lines"})
        start = starts.submit(agent.post, f"/instances/{instance_id}/start")
        agent.wait_for_status(instance_id, "starting")
        clients = [stack.enter_context(_connect(agent, instance_id)) for _ in range(CLIENTS)]
        latencies = _collect(clients)
        agent.post(f"/instances/{instance_id}/stop")
        start.result()
    ordered = sorted(latencies)
    p50, p99 = (ordered[len(ordered) * percent // 100] for percent in (50, 99))
    rate = len(ordered) / MEASURED_S / CLIENTS
    yield Figure(
        name="stream_latency_p99",
        value=p99,
        unit="ms",
        at_most=50,
        note=f"median {p50:.1f}, longest {ordered[-1]:.1f}; {rate:.0f} lines/s at each of {CLIENTS} clients",
    )


def _connect(agent: Agent, instance_id: str) -> socket.socket:
    """A raw connection, so that the clients cost little beside the agent."""
    client = socket.create_connection(("127.0.0.1", agent.port))
    client.sendall(
        f"GET /instances/{instance_id}/logs?tail=0 HTTP/1.1\r\nHost: x\r\nX-API-Key: {agent.key}\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
    )
    head = client.recv(1000)
    assert head.startswith(b"HTTP/1.1 101"), head
    return client


def _collect(clients: list[socket.socket]) -> list[float]:
    """Milliseconds for each line at each client. A line that arrives in two pieces isn't counted."""
    latencies: list[float] = []
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client, selectors.EVENT_READ)
        begin = time.monotonic() + SETTLE_S
        while (now := time.monotonic()) < begin + MEASURED_S:
            for key, _ in selector.select(1.0):
                data = key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
                arrived_ns = time.monotonic_ns()
                if now >= begin:
                    latencies.extend((arrived_ns - int(at)) / 1e6 for at in LINE.findall(data))
    return latencies


if __name__ == "__main__":
    show(measure)
