"""How the link stands a bad solar-control: outages, a flood of log lines, a thousand connections."""

import itertools
import logging
import random
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from contrib.bench.agents import agent_of_idle_servers, prints_lines, start_all
from contrib.bench.figures import Figure, seconds, show, times
from tests.agent import Agent
from tests.control_faults import STEPS, FaultyServer
from tests.control_host import KEY, Host, job_ended, log_lines, pull
from tests.control_process import ControlProcess, wait_for

CONNECTIONS = times(1000)
OUTAGES = times(50)
FLOOD_S = seconds(30.0)
LINES_PER_S = 20_000
BACKOFF_S = 0.5
SILENCE_S = 2.0


def measure() -> Iterator[Figure]:
    logging.basicConfig(level=logging.ERROR)  # lost connections are what this is about
    yield from measure_flood(FLOOD_S)
    yield from measure_connections(CONNECTIONS)
    yield from measure_outages(OUTAGES)


def measure_connections(count: int) -> Iterator[Figure]:
    """Connections that are lost right after the host was acknowledged leave nothing behind."""
    with FaultyServer(0, "acknowledged") as faulty:
        host = Host(f"http://127.0.0.1:{faulty.port}", ws_reconnect_delay=0.01, ws_reconnect_max_delay=0.01)
        host.link.start()
        wait_for(lambda: faulty.served >= 20, "the first connections")
        threads, files, memory = threading.active_count(), _open_files(), _memory_mib()
        wait_for(lambda: faulty.served >= 20 + count, f"{count} connections", timeout_s=300)
        wait_for(lambda: threading.active_count() <= threads and _open_files() <= files, "nothing is left")
        after = f"after {count} connections that were lost"
        left = threading.active_count() - threads
        yield Figure(name="connections_threads", value=left, unit="more", at_most=0, note=after)
        left = _open_files() - files
        yield Figure(name="connections_descriptors", value=left, unit="more", at_most=0, note=after)
        yield Figure(name="connections_memory", value=_memory_mib() - memory, unit="MiB more", note=after)
        host.close()


def measure_outages(rounds: int) -> Iterator[Figure]:
    """Killed, frozen, refusing, answering 502, hanging up at each step: back within one backoff."""
    faults = itertools.islice(itertools.cycle(["killed", "frozen", *STEPS]), rounds)
    waits_s: list[float] = []
    kills = 0
    with _control() as control, _host(control) as host:
        wait_for(lambda: _is_settled(host), "registered")
        threads, files = threading.active_count(), _open_files()
        jobs = EndingJobs(host)
        for fault in faults:
            if fault == "frozen":
                control.freeze()
                time.sleep(random.uniform(0, 2 * SILENCE_S))
                control.thaw()
            else:
                control.kill()
                kills += 1
                if fault != "killed":
                    with FaultyServer(control.port, fault) as faulty:
                        wait_for(partial(_has_served, faulty, 2), f"attempts at {fault}")
                wait_for(lambda: host.link.host_id is None, "the loss is seen")
                control.start()
            began = time.monotonic()
            wait_for(lambda: host.link.host_id is not None, f"back after {fault}", timeout_s=60)
            waits_s.append(time.monotonic() - began)
            wait_for(lambda: host.link.status()["queued"]["kept"] < 10, "the backlog is sent", timeout_s=60)
        jobs.end()
        wait_for(lambda: _is_settled(host), "all is acknowledged", timeout_s=60)
        wait_for(lambda: control.sessions() == ["gpu-1"], "one session")
        wait_for(lambda: threading.active_count() <= threads, "no threads are left")
        wait_for(lambda: _open_files() <= files, "no descriptors are left")
        arrived = Counter(record["data"]["job_id"] for record in control.events("job_completed"))
    lost, twice = jobs.ended - arrived, arrived - jobs.ended
    yield Figure(
        name="outage_back",
        value=max(waits_s),
        unit="s",
        at_most=BACKOFF_S,
        note=f"the longest of {rounds} outages; the limit is the backoff",
    )
    of = f"of {jobs.ended.total()} ends of jobs in {rounds} outages"
    yield Figure(name="outage_lost", value=lost.total(), unit="events", at_most=0, note=of)
    of += "; control was killed between handling and acknowledging"
    yield Figure(name="outage_twice", value=twice.total(), unit="events", at_most=kills, note=of)


def measure_flood(span_s: float) -> Iterator[Figure]:
    """20,000 lines a second against a slow control: bounded memory, counted drops, quick REST."""
    with _control("--log-delay-s", "0.2") as control:
        settings = {"SOLAR_CONTROL_URL": control.url, "SOLAR_CONTROL_API_KEY": KEY}
        with agent_of_idle_servers(prints_lines(LINES_PER_S), **settings) as (agent, config):
            wait_for(lambda: control.events("host_health"), "the introduction")
            idle_ms = _rest_p99_ms(agent, 3.0)
            start_all(agent, [agent.create({**config, "alias": "noisy"})])
            wait_for(lambda: _link(agent)["dropped"]["logs"], "the queue is full", timeout_s=60)
            before_mib = _agent_mib(agent)
            busy_ms = _rest_p99_ms(agent, span_s)
            grown_mib = _agent_mib(agent) - before_mib
            link = _link(agent)
            reports = agent.log().count("dropped from the queues")
        sent = sum(record["lines"] for record in control.events("log_batch"))
    yield Figure(
        name="flood_rest_p99",
        value=busy_ms,
        unit="ms",
        at_most=100,
        note=f"{LINES_PER_S} lines/s against a slow control; {idle_ms:.0f} ms before",
    )
    yield Figure(
        name="flood_memory",
        value=grown_mib,
        unit="MiB more",
        note=f"after {span_s:.0f} s; {sent} lines sent, {link['dropped']['logs']} dropped and reported "
        f"{reports} times, {link['queued']['logs']} queued, {link['connections']} connection",
    )


class EndingJobs:
    """Ends a job and a pull every 100 ms, in a thread, until `end`."""

    def __init__(self, host: Host):
        self.ended: Counter[str] = Counter()
        self._host = host
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        for number in itertools.count():
            if self._ending.wait(0.1):
                return
            self._host.link.publish(job_ended(number))
            self._host.link.publish(pull("completed"))
            self._host.link.publish(log_lines(number * 10, 10))
            self.ended[f"job-{number}"] += 1


@contextmanager
def _control(*options: str) -> Iterator[ControlProcess]:
    with tempfile.TemporaryDirectory() as name:
        control = ControlProcess(Path(name), (KEY,), options).start()
        yield control
        control.kill()


@contextmanager
def _host(control: ControlProcess) -> Iterator[Host]:
    host = Host(
        control.url,
        ws_reconnect_delay=0.1,
        ws_reconnect_max_delay=BACKOFF_S,
        ws_silence_timeout=SILENCE_S,
    )
    host.link.start()
    yield host
    host.close()


def _has_served(faulty: FaultyServer, connections: int) -> bool:
    return faulty.served >= connections


def _is_settled(host: Host) -> bool:
    status = host.link.status()
    return status["state"] == "registered" and not any(status["queued"].values())


def _link(agent: Agent) -> dict[str, Any]:
    return dict(agent.get("/health").json()["control"])


def _rest_p99_ms(agent: Agent, seconds: float) -> float:
    times_ms = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        assert agent.get("/instances").status_code == 200
        times_ms.append(1000 * (time.monotonic() - began))
        time.sleep(0.01)
    return statistics.quantiles(times_ms, n=100)[98]


def _agent_mib(agent: Agent) -> float:
    return sum(process.memory_full_info().uss for process in agent.own_processes()) / 2**20


def _memory_mib() -> float:
    return float(psutil.Process().memory_full_info().uss) / 2**20


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


if __name__ == "__main__":
    show(measure)
