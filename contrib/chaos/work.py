"""What clients do with models, jobs and reservations, and what they do wrong."""

import hashlib
import time
from pathlib import Path
from random import Random
from typing import ClassVar

from contrib.chaos.findings import Findings
from contrib.chaos.memory import Memory
from contrib.chaos.rest import LONGEST_S, Answer, Rest
from contrib.chaos.weather import AGENT
from contrib.chaos.world import World
from tests.jobs_fixtures import body as job_body
from tests.jobs_fixtures import shell

COUNTED_LINES = 200  # of a job's step
PULL_FAILURES = (500, 502, 503, 507)  # its source has faults, and its worker is killed


class Work:
    """Each public method is one action; its `chance` decides what it does it to."""

    # How often each comes, out of a whole deck.
    DECK: ClassVar[dict[str, int]] = {
        "read_step_log": 6,
        "pull": 12,
        "cancel_pull": 2,
        "delete_model": 6,
        "submit_job": 10,
        "cancel_job": 3,
        "reserve": 8,
        "release": 6,
        "misuse": 8,
    }

    def __init__(self, world: World, rest: Rest, memory: Memory, findings: Findings):
        self._world = world
        self._rest = rest
        self._memory = memory
        self._findings = findings

    def misuse(self, chance: Random) -> None:
        """What makes no sense gets a clear refusal."""
        method, path, body, allowed = chance.choice(
            (
                ("POST", "/instances", {"config": {"backend_type": "none"}}, (422,)),
                ("POST", "/instances", {"config": {"alias": "x", "model": 7}}, (422,)),
                ("POST", "/models/pull", {"source": "harbor"}, (422,)),
                ("POST", "/jobs", {"job_id": "../x", "name": "x", "steps": []}, (400,)),
                ("DELETE", "/instances/../../etc", None, (404, 405)),
                ("PUT", "/resources", {}, (405,)),
                ("GET", "/instances/%2e%2e/logs", None, (404,)),
                ("POST", "/resources/reservations", {"job_id": "j", "ram_gb": -1}, (422,)),
            )
        )
        answer = self._rest.call(method, path, body, allowed=allowed)
        if answer and answer.ok:
            self._findings.add("misuse", f"a refusal of {method} {path} {body}", str(answer.body)[:300])

    # -- models

    def pull(self, chance: Random) -> None:
        uri = chance.choice(sorted(self._world.contents))
        self.pull_model(uri)

    def pull_model(self, uri: str) -> Answer | None:
        """Pull it and compare what is on disk then."""
        scheme, _, name = uri.partition("://")
        body = {"source": "huggingface", "source_uri": uri, "model_id": name}
        if scheme == "repo":
            host = self._world.registry.front.url.removeprefix("https://")
            body = {"source": "harbor", "source_uri": uri, "harbor_ref": f"{host}/{name}"}
        answer = self._rest.call("POST", "/models/pull", body, allowed=PULL_FAILURES, within_s=LONGEST_S)
        if answer and answer.ok:
            self._memory.models.make(uri, answer.began)
            wrong = self._differences(uri, Path(answer.body["path"]))
            if wrong and uri in self._memory.models.owed(time.monotonic()):
                self._findings.add("pulled files", f"the bytes of {uri}", wrong)
        return answer

    def _differences(self, uri: str, path: Path) -> str:
        folder = path if path.is_dir() else path.parent
        for name, content in self._world.contents[uri].items():
            try:
                digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
            except OSError as error:
                return str(error)
            if digest != content.sha256:
                return f"{name} has sha256 {digest}, not {content.sha256}"
        return ""

    def cancel_pull(self, chance: Random) -> None:
        answer = self._rest.get("/models/pulls")
        if answer and answer.ok and answer.body:
            pull = chance.choice(answer.body)
            self._rest.call("DELETE", f"/models/pulls/{pull['id']}", allowed=(404, 409), within_s=30)

    def delete_model(self, chance: Random) -> None:
        self.remove_model(chance.choice(sorted(self._world.contents)))

    def remove_model(self, uri: str) -> None:
        name = uri.replace("huggingface://", "hf--").replace("repo://", "repo--")
        slug = name.replace("/", "--").replace(":", "--")
        with self._memory.models.deletion(uri) as deletion:
            answer = self._rest.call("DELETE", f"/models/{slug}", allowed=(404, 409), within_s=30)
            if answer and answer.status == 409:
                deletion.refused()

    # -- jobs and reservations

    def submit_job(self, chance: Random) -> None:
        if self._world.engine is None:
            return
        job_id = f"job-{chance.randrange(10**9)}"
        pause_us = chance.choice((0, 5_000, 20_000, 50_000))
        code = chance.choice((0, 0, 0, 3))
        count = f"i=0; while [ $i -lt {COUNTED_LINES} ]; do echo line $i; i=$((i+1)); usleep {pause_us}; done"
        after = shell("after", "echo done > /workspace/output/done")
        steps = [shell("count", f"{count}; exit {code}"), after]
        answer = self._rest.call(
            "POST", "/jobs", job_body(job_id, *steps, min_free_disk_gb=0.0), allowed=(409, 503, 507)
        )
        if answer and answer.ok:
            self._memory.jobs.make(job_id, answer.began)

    def cancel_job(self, chance: Random) -> None:
        running = sorted(self._memory.jobs.owed(time.monotonic()) - {*self._memory.job_ends})
        if not running:
            return
        job_id = chance.choice(running)
        with self._memory.jobs.deletion(job_id) as deletion:
            answer = self._rest.call("DELETE", f"/jobs/{job_id}", allowed=(404, 409, 503))
            if answer and answer.ok:
                deletion.done()
            elif answer and answer.status == 409:
                deletion.refused()

    def reserve(self, chance: Random) -> None:
        body = {
            "job_id": f"job-{chance.randrange(100)}",
            "workload_type": "training",
            "ram_gb": chance.choice((0.01, 0.1, 10_000)),
            "ttl_seconds": 86400,
        }
        began = time.monotonic()
        answer = self._rest.call("POST", "/resources/reservations", body, allowed=(409, 503))
        if answer and answer.ok and AGENT not in self._world.weather.since(began):
            self._memory.reservations.make(str(answer.body["id"]), answer.began)

    def release(self, chance: Random) -> None:
        owed = sorted(self._memory.reservations.owed(time.monotonic()))
        if owed:
            self.release_one(chance.choice(owed))

    def release_one(self, reservation_id: str) -> None:
        with self._memory.reservations.deletion(reservation_id) as deletion:
            path = f"/resources/reservations/{reservation_id}"
            answer = self._rest.call("DELETE", path, allowed=(404, 409))
            if answer and answer.ok:
                deletion.done()
            elif answer and answer.status == 409:
                deletion.refused()

    def read_step_log(self, chance: Random) -> None:
        owed = sorted(self._memory.jobs.owed(time.monotonic()))
        if owed:
            query = chance.choice(("", "?tail=10", "?since=100"))
            self._rest.read_lines(f"/jobs/{chance.choice(owed)}/steps/count/logs{query}")
