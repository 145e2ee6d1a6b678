"""REST calls whose answers are judged."""

import time
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import requests

from contrib.chaos.findings import Findings
from contrib.chaos.weather import AFTERMATH_S, AGENT, DESCRIPTORS, DISK, DOCKER, THREADS, Weather
from contrib.chaos.world import World

QUICK_S = 5.0  # what solar-control allows a reading call
WRITING_S = 10.0
LONGEST_S = 300.0
# What else may be answered while a fault is at work, or was a moment ago.
EXCUSED = {
    AGENT: {503},
    DISK: {500, 503, 507},
    DOCKER: {503},
    THREADS: {500, 502, 503},
    DESCRIPTORS: {500, 502, 503},
}


@dataclass(frozen=True)
class Answer:
    """One answer and the time (`time.monotonic()`) that it took."""

    status: int
    body: Any
    began: float
    took_s: float

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


class Rest:
    """Calls the agent and judges each answer by itself. Safe from any thread."""

    def __init__(self, world: World, findings: Findings):
        self._agent = world.agent
        self._weather: Weather = world.weather
        self._findings = findings
        self.slowest: dict[str, float] = {}  # seconds, by kind of call, in good weather

    def get(self, path: str, allowed: Collection[int] = ()) -> Answer | None:
        return self.call("GET", path, allowed=allowed, within_s=QUICK_S)

    def read_lines(self, path: str) -> None:
        """Log lines, whose numbers have to follow one another."""
        answer = self.get(path, (404,))
        if answer and answer.ok:
            seqs = [line["seq"] for line in answer.body]
            if any(later != seq + 1 for seq, later in pairwise(seqs)):
                self._findings.add("numbers of a log", f"{path}: one by one", str(seqs)[:600])

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        allowed: Collection[int] = (),
        within_s: float = WRITING_S,
    ) -> Answer | None:
        """One call; None where no answer came, which leaves open whether it was done.

        Args:
            allowed: statuses that are right, beside those of success.
            within_s: how long it may take while the agent is well.
        """
        began = time.monotonic()
        what = f"{method} {path}"
        try:
            with requests.Session() as session:
                session.trust_env = False
                response = session.request(
                    method,
                    self._agent.url + path,
                    json=body,
                    headers={"X-API-Key": self._agent.key},
                    timeout=LONGEST_S,
                )
        except requests.RequestException as error:
            took_s = time.monotonic() - began
            weather = self._weather.since(began - AFTERMATH_S)
            if not weather & {AGENT, DESCRIPTORS, THREADS}:
                self._findings.add(f"no answer: {_kind(what)}", "an answer", f"{error} after {took_s:.1f} s")
            return None
        answer = Answer(response.status_code, _json(response), began, time.monotonic() - began)
        self._judge(what, answer, allowed, within_s)
        return answer

    def _judge(self, what: str, answer: Answer, allowed: Collection[int], within_s: float) -> None:
        weather = self._weather.since(answer.began - AFTERMATH_S)
        excused = set[int]().union(*(EXCUSED.get(name, set()) for name in weather))
        shown = f"{what} -> {answer.status} {str(answer.body)[:600]}"
        if not isinstance(answer.body, dict | list):
            self._findings.add(f"no JSON: {_kind(what)}", "a JSON body", shown)
        elif answer.status == 500 and isinstance(answer.body, dict) and "id" in answer.body:
            self._findings.add(f"unexpected error: {_kind(what)}", "no unexpected error", shown)
        elif not (answer.ok or answer.status in allowed or answer.status in excused):
            self._findings.add(f"status: {_kind(what)}", f"2xx or {sorted(allowed)}", shown)
        if weather & {AGENT, DESCRIPTORS, THREADS, DOCKER}:
            return
        kind = _kind(what)
        self.slowest[kind] = max(self.slowest.get(kind, 0.0), answer.took_s)
        if answer.took_s > within_s:
            self._findings.add(f"slow: {kind}", f"an answer within {within_s} s", f"{answer.took_s:.1f} s")


def _kind(what: str) -> str:
    """A call without its ids."""
    method, _, path = what.partition(" ")
    parts = path.partition("?")[0].split("/")
    at = 3 if parts[2:3] in (["pull"], ["pulls"], ["reservations"]) else 2
    return f"{method} {'/'.join([*parts[:at], *('…' for _ in parts[at : at + 1]), *parts[at + 1 :]])}"


def _json(response: requests.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return response.text
