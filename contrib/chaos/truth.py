"""Judges all the time: is what the agent says what the operating system says, and is nothing lost?"""

import time
from collections import defaultdict
from collections.abc import Iterable
from statistics import linear_regression
from threading import Event, Thread
from typing import Any

from contrib.chaos import processes
from contrib.chaos.findings import Findings
from contrib.chaos.memory import Memory, Promises
from contrib.chaos.processes import Child
from contrib.chaos.rest import Answer, Rest
from contrib.chaos.weather import AGENT, DESCRIPTORS, DISK, THREADS
from contrib.chaos.world import World

LOOK_EVERY_S = 1.0
GRACE_S = 15.0  # how long the agent and the system may differ; every end of a process is news at first
MEMORY_EVERY_S = 5.0
MEMORY_SEEN_S = 120.0
STUCK_S = 60.0  # how long an instance may be between two states without a process


class Doubts:
    """What looks wrong and may only be late: each doubt that lasts becomes a finding, once."""

    def __init__(self, findings: Findings):
        self._findings = findings
        self._since: dict[tuple[str, str], float] = {}
        self._told: set[tuple[str, str]] = set()

    def update(self, doubts: dict[tuple[str, str], tuple[float, str, str]]) -> None:
        """All present doubts.

        Args:
            doubts: grace in seconds, what is expected and what was measured, by kind and subject.
        """
        now = time.monotonic()
        self._since = {key: self._since.get(key, now) for key in doubts}
        self._told &= set(doubts)
        for key, (grace_s, expected, measured) in doubts.items():
            lasted_s = now - self._since[key]
            if lasted_s >= grace_s and key not in self._told:
                self._told.add(key)
                self._findings.add(key[0], expected, f"{measured}, for {lasted_s:.0f} s")

    def clear(self) -> None:
        self._since = {}


class MemorySlope:
    """How the memory of the present worker grows."""

    def __init__(self) -> None:
        self._worker: int | None = None
        self._samples: list[tuple[float, float]] = []  # moment (s), MiB

    def sample(self, worker: int | None) -> None:
        """At most every `MEMORY_EVERY_S`; another worker begins anew."""
        now = time.monotonic()
        if worker != self._worker:
            self._worker, self._samples = worker, []
        if worker is not None and (not self._samples or now - self._samples[-1][0] >= MEMORY_EVERY_S):
            self._samples.append((now, processes.memory_mib(worker)))

    @property
    def course(self) -> str:
        """MiB, about once a minute."""
        every = max(1, round(60 / MEMORY_EVERY_S))
        return " ".join(f"{mib:.0f}" for _, mib in self._samples[::every])

    def mib_a_minute(self) -> float | None:
        """Over the second half of its life; None when that is too short to tell."""
        half = self._samples[len(self._samples) // 2 :]
        if len(half) < 2 or half[-1][0] - half[0][0] < MEMORY_SEEN_S:
            return None
        moments, mib = zip(*half, strict=True)
        return 60 * linear_regression(moments, mib).slope


class Truth(Thread):
    """Compares once a second, until `stop`."""

    def __init__(self, world: World, rest: Rest, memory: Memory, findings: Findings):
        super().__init__(name="truth", daemon=True)
        self._world = world
        self._rest = rest
        self._memory = memory
        self._findings = findings
        self._doubts = Doubts(findings)
        self._stopping = Event()
        self.looks = 0
        self.memory = MemorySlope()

    def run(self) -> None:
        while not self._stopping.wait(LOOK_EVERY_S):
            self.look()

    def stop(self) -> None:
        self._stopping.set()

    def look(self) -> None:
        """One comparison; what the agent says while it is broken does not count."""
        began = time.monotonic()
        if self._world.has_ended() and AGENT not in self._world.weather.since(began):
            last_words = self._world.agent.log()[-800:]
            self._findings.add("the agent ended", "it runs until it is told to stop", last_words)
            with self._world.agent_down():
                self._memory.reservations.forget()
        instances = self._rest.get("/instances")
        resources = self._rest.get("/resources")
        jobs = self._rest.get("/jobs")
        models = self._rest.get("/models")
        children = processes.children(self._world.agent.mark)
        if self._world.weather.since(began) & {AGENT, THREADS, DESCRIPTORS}:
            self._doubts.clear()
            return
        self.looks += 1
        self.memory.sample(self._world.worker_pid())
        if instances and instances.ok:
            self._compare_instances(instances.body, children)
            ids = [row["id"] for row in instances.body]
            self._compare(self._memory.instances, instances, ids, "instance")
        if jobs and jobs.ok:
            for row in jobs.body:
                if row["status"] not in ("pending", "running"):
                    self._memory.job_ends.setdefault(row["job_id"], time.monotonic())
            self._compare(self._memory.jobs, jobs, [row["job_id"] for row in jobs.body], "job")
        if models and models.ok and DISK not in self._world.weather.since(began):
            self._compare(self._memory.models, models, [row["source_uri"] for row in models.body], "model")
        if resources and resources.ok:
            known = [row["id"] for row in resources.body["reservations"]]
            self._compare(self._memory.reservations, resources, known, "reservation")

    def _compare(self, promises: Promises, answer: Answer, listed: Iterable[str], what: str) -> None:
        names = set(listed)
        for name in promises.owed(answer.began) - names:
            self._findings.add(f"lost {what}", f"{name} is listed", f"only {sorted(names)}")
        for name in promises.gone(answer.began) & names:
            self._findings.add(f"undead {what}", f"{name} was deleted", "it is listed")

    def _compare_instances(self, rows: list[dict[str, Any]], children: list[Child]) -> None:
        by_instance: dict[str, list[Child]] = defaultdict(list)
        for child in children:
            by_instance[child.instance_id].append(child)
        doubts: dict[tuple[str, str], tuple[float, str, str]] = {}
        ports: dict[int, str] = {}
        for row in rows:
            name, status, own = row["id"], row["status"], by_instance.pop(row["id"], [])
            shown = (
                f"{status}, reason {row['reason']}, pid {row['pid']}, run {row['run']}, port {row['port']}"
            )
            alive = [f"{child.pid} (run {child.run})" for child in own]
            if status == "running":
                if row["pid"] not in [child.pid for child in own]:
                    doubts["running without process", name] = (GRACE_S, f"{shown}: alive", f"alive: {alive}")
                elif not processes.listens(row["pid"], row["port"]):
                    doubts["running and deaf", name] = (GRACE_S, f"{shown}: listens", "it does not")
                if row["port"] in ports:
                    expected = f"{shown}: a port of its own"
                    doubts["port given twice", name] = (GRACE_S, expected, ports[row["port"]])
                ports[row["port"]] = f"{name} has it"
            elif status in ("starting", "stopping"):
                if not own:
                    expected = f"{shown}: a process, or an end"
                    doubts[f"stuck {status}", name] = (STUCK_S, expected, "no process")
            elif own and row["reason"] != "stop_failed":
                doubts[f"{status} and alive", name] = (GRACE_S, f"{shown}: nothing alive", f"alive: {alive}")
            runs = {child.run for child in own}
            if len(runs) > 1:
                doubts["two runs at once", name] = (GRACE_S, f"{shown}: one run", f"alive: {alive}")
        for name, left in by_instance.items():
            doubts["orphan", name] = (GRACE_S, "its instance is known", f"alive: {[c.pid for c in left]}")
        self._doubts.update(doubts)
