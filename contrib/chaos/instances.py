"""What clients do with instances: random calls of the REST API, and questions to what runs."""

from random import Random
from typing import Any, ClassVar

import requests

from contrib.chaos.findings import Findings
from contrib.chaos.memory import Memory
from contrib.chaos.rest import Rest
from contrib.chaos.weather import DESCRIPTORS, DISK, THREADS
from contrib.chaos.world import World

SLOTS = ("count-0", "count-1", "count-2", "llama-0", "llama-1", "embed-0")
SLOT_WEIGHTS = (4, 4, 4, 3, 3, 2)
START_S = 280.0  # two attempts of 120 s, and their ends
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


class InstanceWork:
    """Each public method is one action; its `chance` decides which instance it is about."""

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
    }

    def __init__(self, world: World, rest: Rest, memory: Memory, findings: Findings):
        self._world = world
        self._rest = rest
        self._memory = memory
        self._findings = findings

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
        url = f"http://127.0.0.1:{answer.body['port']}{path}"
        headers = {"Authorization": f"Bearer {self._world.agent.key}"}
        try:
            with requests.Session() as session:
                session.trust_env = False
                status = session.post(url, json=body, headers=headers, timeout=60).status_code
            self._findings.note(f"question to {slot}: {status}")
        except requests.RequestException:
            self._findings.note(f"question to {slot}: no answer")

    def read_log(self, chance: Random) -> None:
        instance_id = self._memory.slots.get(_slot(chance), "no-such-instance")
        query = chance.choice(("", "?tail=10", "?since=100", "?tail=5&since=20", "?run=1"))
        self._rest.read_lines(f"/instances/{instance_id}/logs{query}")

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


def _slot(chance: Random) -> str:
    return chance.choices(SLOTS, SLOT_WEIGHTS)[0]
