"""`GET /instances` with 10 instances at 32 connections, against the peer in the same run.

At least the peer's requests a second, and a 99th percentile not above the peer's: first alone, then
while 40 log streams are open and a start is waiting. `wrk` makes the requests, in turns.
"""

import re
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from websocket import create_connection

from contrib.bench.agents import running_agent
from contrib.bench.peer import Peer, running_peer
from tests.agent import Agent

INSTANCES = 10
CONNECTIONS = 32
ROUNDS = 5
ROUND_S = 4
STREAMS = 40

# Never ready, and says something ten times a second.
WAITING_SERVER = "#!/bin/sh\nwhile :; do echo still loading; sleep 0.1; done\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        server, model = Path(name) / "llama-server", Path(name) / "model.gguf"
        server.write_text(WAITING_SERVER)
        server.chmod(0o755)
        model.write_bytes(b"GGUF")
        agent = stack.enter_context(running_agent(LLAMA_SERVER_PATH=str(server)))
        peer = stack.enter_context(running_peer())
        for number in range(INSTANCES):
            config = {"model": str(model), "alias": f"bench-{number}", "backend_type": "llamacpp"}
            instance_id = agent.create(config)
            if peer:
                peer.create(config)
        _report("alone", agent, peer)
        with ThreadPoolExecutor(1) as starts, ExitStack() as streams:
            start = starts.submit(agent.post, f"/instances/{instance_id}/start")
            agent.wait_for_status(instance_id, "starting")
            url = f"ws://127.0.0.1:{agent.port}/instances/{instance_id}/logs"
            for _ in range(STREAMS):
                stream = create_connection(url, header={"X-API-Key": agent.key}, timeout=10)
                stream.recv()
                streams.callback(stream.shutdown)
            _report(f"with_{STREAMS}_streams_and_a_start", agent, peer)
            agent.post(f"/instances/{instance_id}/stop")
            start.result()


def _report(when: str, agent: Agent, peer: Peer | None) -> None:
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(_measure(agent.port, agent.key))
        if peer:
            theirs.append(_measure(peer.port, peer.key))
    rate, p99 = (statistics.median(values) for values in zip(*ours, strict=True))
    if not peer:
        print(f"rest_{when} {rate:.0f} requests/s, p99 {p99:.1f} ms (no peer to compare with)")
        return
    peer_rate, peer_p99 = (statistics.median(values) for values in zip(*theirs, strict=True))
    print(
        f"rest_{when} {rate:.0f} requests/s, p99 {p99:.1f} ms; peer {peer_rate:.0f} requests/s, "
        f"p99 {peer_p99:.1f} ms; ratios {rate / peer_rate:.2f} (at least 1), {p99 / peer_p99:.2f} (at most 1)"
    )


def _measure(port: int, key: str) -> tuple[float, float]:
    """Requests a second, and the 99th percentile of their latency in milliseconds."""
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{ROUND_S}s", "--latency", "-H", f"X-API-Key: {key}"]
    output = subprocess.check_output([*command, f"http://127.0.0.1:{port}/instances"], text=True)
    if "Non-2xx" in output or "Socket errors" in output:
        sys.exit(f"not all requests were answered:\n{output}")
    rate = re.search(r"Requests/sec:\s+([\d.]+)", output)
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s)", output)
    assert rate and p99, output
    return float(rate[1]), float(p99[1]) * {"us": 0.001, "ms": 1, "s": 1000}[p99[2]]


if __name__ == "__main__":
    main()
