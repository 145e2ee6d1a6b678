"""`GET /instances` with 10 instances at 32 connections, against the peer in the same run.

At least the peer's requests a second, and a 99th percentile not above the peer's: first alone, then
while 40 log streams are open and a start is waiting. `wrk` makes the requests, in turns.
"""

import statistics
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from websocket import create_connection

from contrib.bench.agents import running_agent
from contrib.bench.figures import OF_PEER, Figure, seconds, show, times
from contrib.bench.peer import Peer, running_peer
from contrib.bench.wrk import load
from tests.agent import Agent

INSTANCES = 10
CONNECTIONS = 32
ROUNDS = times(5)
ROUND_S = seconds(4)
STREAMS = 40

# Never ready, and says something ten times a second.
WAITING_SERVER = "#!/bin/sh\nwhile :; do echo still loading; sleep 0.1; done\n"


def measure() -> Iterator[Figure]:
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
        yield from _compare("rest", agent, peer, "nothing else is asked")
        with ThreadPoolExecutor(1) as starts, ExitStack() as streams:
            start = starts.submit(agent.post, f"/instances/{instance_id}/start")
            agent.wait_for_status(instance_id, "starting")
            url = f"ws://127.0.0.1:{agent.port}/instances/{instance_id}/logs"
            for _ in range(STREAMS):
                stream = create_connection(url, header={"X-API-Key": agent.key}, timeout=10)
                stream.recv()
                streams.callback(stream.shutdown)
            yield from _compare("rest_busy", agent, peer, f"{STREAMS} streams are open and a start waits")
            agent.post(f"/instances/{instance_id}/stop")
            start.result()


def _compare(name: str, agent: Agent, peer: Peer | None, while_: str) -> Iterator[Figure]:
    """Ours and the peer's in turns: requests a second, and the 99th percentile of their latency."""
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(load(f"{agent.url}/instances", {"X-API-Key": agent.key}, CONNECTIONS, ROUND_S))
        if peer:
            theirs.append(load(f"{peer.url}/instances", {"X-API-Key": peer.key}, CONNECTIONS, ROUND_S))
    rate = statistics.median(round_.rate for round_ in ours)
    p99_ms = statistics.median(round_.p99_ms for round_ in ours)
    note = f"{CONNECTIONS} connections, {INSTANCES} instances; {while_}"
    yield Figure(name=f"{name}_rate", value=rate, unit="requests/s", note=note)
    yield Figure(name=f"{name}_p99", value=p99_ms, unit="ms", note=note)
    if not theirs:
        return
    peer_rate = statistics.median(round_.rate for round_ in theirs)
    peer_p99_ms = statistics.median(round_.p99_ms for round_ in theirs)
    yield Figure(
        name=f"{name}_rate_of_peer",
        value=rate / peer_rate,
        unit=OF_PEER,
        at_least=1,
        note=f"peer {peer_rate:.0f} requests/s, medians of {ROUNDS} in turns; {while_}",
    )
    yield Figure(
        name=f"{name}_p99_of_peer",
        value=p99_ms / peer_p99_ms,
        unit=OF_PEER,
        at_most=1,
        note=f"peer {peer_p99_ms:.1f} ms, medians of {ROUNDS} in turns; {while_}",
    )


if __name__ == "__main__":
    show(measure)
