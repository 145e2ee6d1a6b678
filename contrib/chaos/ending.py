"""The end of a run: faults stop, everything is taken back, and nothing may be left."""

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from contrib.chaos import processes
from contrib.chaos.findings import Findings
from contrib.chaos.memory import Memory
from contrib.chaos.rest import Rest
from contrib.chaos.weather import DISK, DOCKER
from contrib.chaos.work import COUNTED_LINES, Work
from contrib.chaos.world import REQUEST_THREADS, World
from tests.agent import wait_until

QUIET_WITHIN_S = 90.0
SPARE_DESCRIPTORS = 40  # docker-py keeps up to 25 connections; the link, the last requests
SPARE_THREADS = 4
HEARTBEAT = "/wgunicorn-"  # the file whose time tells gunicorn's master that its worker lives
HELD = "solarhost_held_threads 0.0\n"  # by streams and calls that wait
TERMINAL = {"job_completed": "completed", "job_failed": "failed", "job_cancelled": "cancelled"}
ERROR = re.compile(r"^([\w.]+(?:Error|Exception|Closed|Thread)\b.*)$", re.MULTILINE)
COUNTED = re.compile(r"line \d+")
Json = dict[str, Any]


class Ending:
    """The last judge; `baseline` is taken from a fresh agent."""

    def __init__(self, world: World, rest: Rest, memory: Memory, work: Work, findings: Findings):
        self._world = world
        self._rest = rest
        self._memory = memory
        self._work = work
        self._findings = findings
        self._threads = 0
        self._descriptors = 0

    def baseline(self) -> None:
        worker = self._worker()
        self._threads = processes.threads(worker)
        self._descriptors = len(processes.open_files(worker))

    def _worker(self) -> int:
        pid: int = wait_until(self._world.worker_pid, QUIET_WITHIN_S, "the worker")
        return pid

    def judge(self) -> None:
        """All promises are redeemed one by one, and then the agent is stopped."""
        self._until("the agent is healthy", lambda: self._health() == [], self._health)
        self._judge_jobs()
        self._end_instances()
        self._release_all()
        self._drop_models()
        self._judge_worker()
        code = self._world.agent.stop()
        if code != 0:
            self._findings.add("exit code", "0 after SIGTERM", str(code))
        self._judge_leftovers()

    def _health(self) -> Any:
        answer = self._rest.get("/health")
        return answer.body.get("problems", []) if answer and answer.ok else "no answer"

    def _until(self, what: str, condition: Callable[[], bool], measured: Callable[[], object]) -> None:
        deadline = time.monotonic() + QUIET_WITHIN_S
        while not condition():
            if time.monotonic() > deadline:
                expected = f"{what} within {QUIET_WITHIN_S:.0f} s"
                self._findings.add(f"end: {what}", expected, str(measured())[:800])
                return
            time.sleep(0.2)

    # -- jobs

    def _jobs(self) -> list[Json]:
        answer = self._rest.get("/jobs")
        return answer.body if answer and answer.ok else []

    def _judge_jobs(self) -> None:
        def busy() -> list[str]:
            return [job["job_id"] for job in self._jobs() if job["status"] in ("pending", "running")]

        self._until("all jobs end", lambda: not busy(), busy)
        jobs = self._jobs()
        for job in jobs:
            self._judge_step_log(job)
        ends = {job["job_id"]: str(job["status"]) for job in jobs}
        ends |= dict.fromkeys(self._memory.jobs.gone(time.monotonic()), "cancelled")

        def missing() -> list[str]:
            return self._missing_events(ends)

        self._until("terminal events arrive", lambda: not missing(), missing)
        for job_id, events in self._events().items():
            if len(events) > 1:  # the death of control or of the agent may double one, to the letter
                self._findings.note("a terminal event came twice")
            if len(set(events)) > 1:
                self._findings.add("two terminal events", f"one of {job_id}", str(events))
        if self._world.engine is not None:
            containers = self._world.engine.containers
            self._until("containers go", lambda: not containers(), containers)

    def _judge_step_log(self, job: Json) -> None:
        """Each line once and in order; what was printed while Docker or the disk was away may be missing."""
        step = job["steps"][0]
        path = Path(step["log_file"])
        if step["status"] != "completed" or not path.is_file():
            return
        lines = [line for line in path.read_text(errors="replace").splitlines() if COUNTED.fullmatch(line)]
        numbers = [int(line.partition(" ")[2]) for line in lines]
        ended = self._memory.job_ends.get(job["job_id"], time.monotonic())
        weather = self._world.weather.between(self._memory.jobs.made(job["job_id"]), ended)
        excused = weather & {DISK, DOCKER}
        in_order = all(a < b for a, b in pairwise(numbers))
        if not in_order or (len(numbers) != COUNTED_LINES and not excused):
            odd = [number for number, count in Counter(numbers).items() if count > 1]
            missing = sorted(set(range(COUNTED_LINES)) - set(numbers))
            measured = f"{len(numbers)} lines, twice: {odd[:9]}, missing: {missing[:9]} in {path}"
            self._findings.add("lines of a step", f"{COUNTED_LINES} lines, each once and in order", measured)

    def _events(self) -> dict[str, list[tuple[str, str]]]:
        """Name and moment of the terminal events that control received, by job."""
        events: dict[str, list[tuple[str, str]]] = {}
        for record in self._world.control.events(*TERMINAL):
            data = record["data"]
            events.setdefault(data["job_id"], []).append((record["event"], data["timestamp"]))
        return events

    def _missing_events(self, ends: dict[str, str]) -> list[str]:
        """Jobs, and how they ended, of whose end control has not heard."""
        events = self._events()
        return [
            f"{job_id} {status}"
            for job_id, status in ends.items()
            if status not in [TERMINAL[name] for name, _ in events.get(job_id, [])]
        ]

    # -- taking back

    def _end_instances(self) -> None:
        answer = self._rest.get("/instances")
        for row in answer.body if answer and answer.ok else []:
            self._rest.call("POST", f"/instances/{row['id']}/stop", within_s=60)
            self._rest.call("DELETE", f"/instances/{row['id']}")
        self._memory.slots.clear()
        self._until("no child is alive", lambda: not self._children(), self._children)

    def _children(self) -> list[processes.Child]:
        return processes.children(self._world.agent.mark)

    def _release_all(self) -> None:
        answer = self._rest.get("/resources")
        for row in answer.body["reservations"] if answer and answer.ok else []:
            self._rest.call("DELETE", f"/resources/reservations/{row['id']}", allowed=(404,))

        def left() -> object:
            answer = self._rest.get("/resources")
            body: Json = answer.body if answer else {}
            return [body.get("reservations"), body.get("instance_charges")]

        self._until("nothing is reserved", lambda: left() in ([[], []], [[], None]), left)

    def _drop_models(self) -> None:
        def running() -> object:
            answer = self._rest.get("/models/pulls")
            return answer.body if answer else None

        self._world.hub.faults.clear()
        self._world.hub.storage.faults.clear()
        self._world.registry.front.faults.clear()
        self._until("pulls end", lambda: running() == [], running)
        for uri in self._world.contents:
            answer = self._work.pull_model(uri)  # what a killed pull left is used up by the next one
            if answer is None or not answer.ok:
                self._findings.add("end: pull", f"{uri} can be pulled", str(answer)[:600])
            self._work.remove_model(uri)
        models = self._world.agent.folder / "models"
        left = [str(path.relative_to(models)) for path in models.rglob("*") if path.is_file()]
        partial = [name for name in left if name not in ("manifest.json",) and not name.endswith(".lock")]
        if partial:
            self._findings.add("partial files", "no file of a model is left", str(partial))

    # -- what is left

    def _judge_worker(self) -> None:
        worker = self._worker()

        def excess() -> list[str]:
            threads, files = processes.threads(worker), processes.open_files(worker)
            found = []
            if threads > self._threads + REQUEST_THREADS + SPARE_THREADS:
                found.append(f"{threads} threads, {self._threads} at first")
            if len(files) > self._descriptors + SPARE_DESCRIPTORS:
                kinds = Counter(processes.sockets(worker)).most_common(9)
                found.append(f"{len(files)} descriptors, {self._descriptors} at first; sockets: {kinds}")
            deleted = [name for name in files if name.endswith(" (deleted)") and HEARTBEAT not in name]
            logs = [name for name in files if name.startswith(str(self._world.agent.folder / "logs"))]
            return [*found, *(f"open: {name}" for name in deleted + logs)]

        self._until("threads and descriptors return", lambda: not excess(), excess)
        self._until("no request waits", lambda: HELD in self._metrics(), self._metrics)

    def _metrics(self) -> str:
        return str(self._world.agent.get("/metrics").text)

    def _judge_leftovers(self) -> None:
        alive = self._world.agent.left_alive()
        left = [" ".join(process.cmdline()) for process in alive if process.is_running()]
        if left:
            self._findings.add("left alive", "no process after the agent's end", str(left))
        for error, count in Counter(ERROR.findall(self._world.agent.log())).items():
            self._findings.note(f"in the agent's log, {count} times: {error[:100]}")
        config = self._world.agent.folder / "config.json"
        stored = json.loads(config.read_text())
        if stored.get("instances"):
            self._findings.add("config.json", "no instance", str(stored)[:600])
        files = self._world.agent.folder.rglob("*")
        drafts = [str(path) for path in files if ".draft" in path.name or path.suffix == ".tmp"]
        if drafts:
            self._findings.add("drafts", "no half-written file", str(drafts))
