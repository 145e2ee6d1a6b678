"""What clients do: random calls of the REST API."""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import requests

from contrib.chaos.findings import Findings
from contrib.chaos.memory import Memory
from contrib.chaos.rest import LONGEST_S, Answer, Rest
from contrib.chaos.weather import AGENT, DESCRIPTORS, DISK, THREADS
from contrib.chaos.world import World
from tests.jobs_fixtures import body as job_body
from tests.jobs_fixtures import shell

SLOTS = ("count-0", "count-1", "count-2", "llama-0", "llama-1", "embed-0")
SLOT_WEIGHTS = (4, 4, 4, 3, 3, 2)
START_S = 280.0  # two attempts of 120 s, and their ends
COUNTED_LINES = 200  # of a job's step
JOB_SLOTS = 6
# How a counting server misbehaves.
MANNERS: tuple[list[str], ...] = (
    [],
    [],
    [],
    ["--ignore-term"],
    ["--fork-twice"],
    ["--leave-group"],
    ["--ready-after", "3"],
)
CHOSEN_DEATHS = (["--die-after", "4"], ["--exit", "3"], ["--kill-self"])

Action = Callable[[Random], None]


class Work:
    """Each public method is one action; its `chance` decides what it does it to."""

    # How often each comes, out of a whole deck.
    DECK: ClassVar[dict[str, int]] = {
        "create": 12,
        "start": 30,
        "stop": 14,
        "restart": 10,
        "update": 5,
        "delete": 7,
        "ask": 24,
        "look": 20,
        "read_log": 12,
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

    # -- instances

    def create(self, chance: Random) -> None:
        slot = _slot(chance)
        if slot in self._memory.slots:
            return
        body = {"config": self._config(slot, chance), "managed_by": "chaos"}
        answer = self._rest.call("POST", "/instances", body)
        if answer and answer.ok:
            instance_id = str(answer.body["instance"]["id"])
            self._memory.instances.make(instance_id, answer.began)
            self._memory.slots.setdefault(slot, instance_id)

    def start(self, chance: Random) -> None:
        if not self._on_instance("start", chance):
            self.create(chance)

    def restart(self, chance: Random) -> None:
        self._on_instance("restart", chance)

    def stop(self, chance: Random) -> None:
        self._on_instance("stop", chance)

    def _on_instance(self, verb: str, chance: Random) -> bool:
        """False when there is none in the slot."""
        instance_id = self._memory.slots.get(_slot(chance))
        if instance_id is None:
            return False
        path = f"/instances/{instance_id}/{verb}"
        answer = self._rest.call("POST", path, allowed=(404, 500, 503), within_s=START_S)
        unnamed = answer and answer.status == 500 and answer.body.get("instance_id") != instance_id
        if answer and unnamed and not self._world.weather.since(answer.began) & {DISK, DESCRIPTORS, THREADS}:
            self._findings.add(f"failure of {verb}", "instance_id in the body", str(answer.body)[:600])
        return True

    def update(self, chance: Random) -> None:
        slot = _slot(chance)
        instance_id = self._memory.slots.get(slot)
        if instance_id is None:
            return
        config = self._config(slot, chance)
        body = {"config": config, "intent_id": f"intent-{chance.randrange(1000)}"}
        path = f"/instances/{instance_id}"
        answer = self._rest.call("PUT", path, body, allowed=(400, 404))
        if answer and answer.ok and answer.body["instance"]["config"]["alias"] != config["alias"]:
            self._findings.add("update", f"alias {config['alias']}", str(answer.body)[:600])

    def delete(self, chance: Random) -> None:
        slot = _slot(chance)
        instance_id = self._memory.slots.get(slot)
        if instance_id is None:
            return
        self._rest.call("POST", f"/instances/{instance_id}/stop", allowed=(404, 500), within_s=60)
        with self._memory.instances.deletion(instance_id) as deletion:
            answer = self._rest.call("DELETE", f"/instances/{instance_id}", allowed=(400, 404))
            if answer and answer.ok:
                deletion.done()
            elif answer and answer.status != 404:
                deletion.refused()
        if answer and (answer.ok or answer.status == 404) and self._memory.slots.get(slot) == instance_id:
            del self._memory.slots[slot]

    def ask(self, chance: Random) -> None:
        """Use a real model, as its clients do; what the server answers is its own affair."""
        slot = chance.choice(("llama-0", "llama-1", "embed-0"))
        instance_id = self._memory.slots.get(slot)
        answer = self._rest.get(f"/instances/{instance_id}", (404,)) if instance_id else None
        if answer is None or not answer.ok or answer.body["status"] != "running":
            return
        path, body = "/v1/completions", {"prompt": "One, two,", "max_tokens": 12}
        if slot.startswith("embed"):
            path, body = "/v1/embeddings", {"input": ["one", "two"]}
        headers = {"Authorization": f"Bearer {self._world.agent.key}"}
        try:
            url = f"http://127.0.0.1:{answer.body['port']}{path}"
            status = requests.post(url, json=body, headers=headers, timeout=60).status_code
            self._findings.note(f"question to {slot}: {status}")
        except requests.RequestException:
            self._findings.note(f"question to {slot}: no answer")

    def look(self, chance: Random) -> None:
        instance_id = self._memory.slots.get(_slot(chance), "no-such-instance")
        path = chance.choice(
            (
                "/instances",
                "/resources",
                "/health",
                "/jobs",
                "/models",
                "/models/pulls",
                "/memory",
                f"/instances/{instance_id}",
                f"/instances/{instance_id}/state",
                f"/instances/{instance_id}/usage",
                f"/instances/{instance_id}/last-generation?within_s=60",
            )
        )
        self._rest.get(path, (404,))

    def read_log(self, chance: Random) -> None:
        instance_id = self._memory.slots.get(_slot(chance), "no-such-instance")
        query = chance.choice(("", "?tail=10", "?since=100", "?tail=5&since=20", "?run=1"))
        answer = self._rest.get(f"/instances/{instance_id}/logs{query}", (404,))
        if answer and answer.ok:
            seqs = [line["seq"] for line in answer.body]
            if seqs != list(range(seqs[0], seqs[0] + len(seqs)) if seqs else []):
                self._findings.add("numbers of a log", "one by one", str(seqs)[:600])

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
                (
                    "POST",
                    "/resources/reservations",
                    {"job_id": "j", "ram_gb": -1},
                    (422,),
                ),
            )
        )
        answer = self._rest.call(method, path, body, allowed=allowed)
        if answer and answer.ok:
            self._findings.add("misuse", f"a refusal of {method} {path} {body}", str(answer.body)[:300])

    def _config(self, slot: str, chance: Random) -> dict[str, Any]:
        alias = f"{slot}:{chance.randrange(10**6)}"
        if slot.startswith("embed"):
            return {
                "backend_type": "huggingface_embedding",
                "alias": alias,
                "model_id": str(self._world.embedding_model),
                "host": "127.0.0.1",
            }
        config: dict[str, Any] = {
            "backend_type": "llamacpp",
            "alias": alias,
            "model": str(self._world.gguf),
            "host": "127.0.0.1",
            "threads": 1,
            "ctx_size": 512,
        }
        if slot.startswith("count"):
            rate = chance.choice((20, 20, 50, 50, 100, 100, 2000, 5000))
            manner = chance.choice(MANNERS if chance.random() < 0.8 else CHOSEN_DEATHS)
            config["extra_args"] = ["--chatter", str(rate), *manner]
        return config

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
        answer = self._rest.call("POST", "/models/pull", body, allowed=self._failures(), within_s=LONGEST_S)
        if answer and answer.ok:
            self._memory.models.make(uri, answer.began)
            wrong = self._differences(uri, Path(answer.body["path"]))
            if wrong and uri in self._memory.models.owed(time.monotonic()):
                self._findings.add("pulled files", f"the bytes of {uri}", wrong)
        return answer

    def _failures(self) -> tuple[int, ...]:
        """What a pull may answer: its source has faults, and its worker is killed."""
        return (500, 502, 503, 507)

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
        owed = sorted(self._memory.jobs.owed(time.monotonic()))
        if not owed:
            return
        job_id = chance.choice(owed[-JOB_SLOTS:])
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


def _slot(chance: Random) -> str:
    return chance.choices(SLOTS, SLOT_WEIGHTS)[0]
