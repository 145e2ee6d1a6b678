"""How long `/health` takes while clients stall: at most a second, and starts and stops go on.

One line for each way to stall. There are more such clients than the server takes connections; of those
that don't read, more than it has threads, and as many streams as it takes.
"""

import resource
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event

from contrib.bench.agents import idle_server, running_agent
from contrib.bench.figures import Figure, seconds, show
from solarhost.server.options import MAX_CONNECTIONS
from tests.agent import Agent

CLIENTS = MAX_CONNECTIONS + 100
UNREAD_ANSWERS = 100  # more than there are threads, and 1.4 MB each
STREAMS = 48
WAITING_STARTS = 80
MEASURED_S = seconds(6.0)
HEAD = "GET {path} HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\n"


def measure() -> Iterator[Figure]:
    _allow_descriptors(4096)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "model.gguf"
        model.write_bytes(b"GGUF")
        with running_agent(LLAMA_SERVER_PATH=str(idle_server(folder))) as agent:
            config = {"model": str(model), "host": "127.0.0.1"}
            instance_id = agent.create({**config, "alias": "quick"})
            stalls: dict[str, Callable[[Agent, str], Iterator[None]]] = {
                "nobody": _nobody,
                "silent": _silent,
                "byte_a_second": _byte_a_second,
                "half_a_body": _half_a_body,
                "unread_answers": _unread_answers,
                "unread_streams": _unread_streams,
            }
            for how, stall in stalls.items():
                with contextmanager(stall)(agent, instance_id):
                    yield _health(how, agent, instance_id)
        stuck = folder / "stuck-server"
        stuck.write_text("#!/bin/sh\nexec sleep 1000\n")
        stuck.chmod(0o755)
        with running_agent(LLAMA_SERVER_PATH=str(stuck)) as agent, ExitStack() as stack:
            pool = stack.enter_context(ThreadPoolExecutor(WAITING_STARTS))
            ids = [agent.create({**config, "alias": f"stuck-{n}"}) for n in range(WAITING_STARTS)]
            starts = [pool.submit(agent.post, f"/instances/{id_}/start") for id_ in ids]
            yield _health("waiting_starts", agent, None)
            for id_ in ids:
                agent.post(f"/instances/{id_}/stop")
            for start in starts:
                start.result()


def _health(how: str, agent: Agent, instance_id: str | None) -> Figure:
    request = HEAD.format(path="/health", key=agent.key) + "Connection: close\r\n\r\n"
    took_ms = []
    end = time.monotonic() + MEASURED_S
    while time.monotonic() < end:
        began = time.monotonic()
        with _connect(agent, request) as client:
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
        took_ms.append(1000 * (time.monotonic() - began))
        time.sleep(0.05)
    note = f"longest of {len(took_ms)}"
    if instance_id:
        began = time.monotonic()
        assert agent.post(f"/instances/{instance_id}/start").status_code == 200
        assert agent.post(f"/instances/{instance_id}/stop").status_code == 200
        note += f"; a start and a stop took {time.monotonic() - began:.1f} s"
    return Figure(name=f"health_{how}", value=max(took_ms), unit="ms", at_most=1000, note=note)


def _allow_descriptors(count: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


def _nobody(_agent: Agent, _instance_id: str) -> Iterator[None]:
    yield


def _silent(agent: Agent, _instance_id: str) -> Iterator[None]:
    with _clients(agent, CLIENTS, ""):
        yield


def _half_a_body(agent: Agent, _instance_id: str) -> Iterator[None]:
    head = HEAD.format(path="/instances", key=agent.key).replace("GET", "POST")
    with _clients(agent, CLIENTS, head + "Content-Length: 1000\r\n\r\n{"):
        yield


def _unread_answers(agent: Agent, _instance_id: str) -> Iterator[None]:
    head = HEAD.format(path="/docs/static/swagger-ui-bundle.js", key=agent.key)
    with _clients(agent, UNREAD_ANSWERS, head + "\r\n"):
        yield


def _unread_streams(agent: Agent, instance_id: str) -> Iterator[None]:
    upgrade = (
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    path = f"/instances/{instance_id}/state"
    with _clients(agent, STREAMS, HEAD.format(path=path, key=agent.key) + upgrade):
        yield


def _byte_a_second(agent: Agent, _instance_id: str) -> Iterator[None]:
    done = Event()
    with _clients(agent, CLIENTS, "") as clients, ThreadPoolExecutor(1) as pool:
        pool.submit(_drip, clients, done)
        try:
            yield
        finally:
            done.set()


def _drip(clients: list[socket.socket], done: Event) -> None:
    for byte in (HEAD.format(path="/health", key="k" * 1000)).encode():
        for client in clients:
            try:
                client.send(bytes([byte]))
            except OSError:  # dropped, to make room for others
                continue
        if done.wait(1.0):
            return


def _connect(agent: Agent, request: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", agent.port), timeout=10)
    connection.sendall(request.encode())
    return connection


@contextmanager
def _clients(agent: Agent, count: int, request: str) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(_connect(agent, request)) for _ in range(count)]


if __name__ == "__main__":
    show(measure)
