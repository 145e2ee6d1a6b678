"""Chat at 8 concurrent clients: at least 4 times the peer's tokens a second; one client alone no slower.

The peer's needs `PEER_SITE`; see `hf_load`. A small Llama with random weights on
the CPU; prompts and lengths differ and the requests arrive one by one. Also measured: the first token
of a stream against one forward pass of its prompt (at most 1.5 times), `/health` under load (at most
50 ms at p99), and what transformers does with the same eight prompts by itself: one after another, in
one padded batch, and with its own continuous batching; and `transformers serve`.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import torch
from transformers import AutoTokenizer, ContinuousBatchingConfig, LlamaConfig, LlamaForCausalLM

from contrib.bench.figures import OF_PEER, Figure, show, times
from contrib.bench.hf_load import (
    PEER_SITE,
    Caller,
    Running,
    health_figure,
    in_parallel,
    in_turns,
    memory_figure,
    transformers_serve,
)
from tests.hf_models import make_tokenizer

CLIENTS = 8
ROUNDS = times(3)
APART_S = 0.05
WORDS = ["hello", "world", "the", "quick", "brown", "fox", "jumps", "over"]
PROMPTS = [" ".join(WORDS[(n + i) % 8] for i in range(8 + 6 * n)) for n in range(CLIENTS)]
BATCHING = ("--continuous-batching", "--cb-num-blocks", "64")  # as many as the eight need
LENGTHS = [64, 40, 96, 56, 80, 48, 72, 88]


def measure() -> Iterator[Figure]:
    with (
        tempfile.TemporaryDirectory() as name,
        in_turns(folder := save_model(Path(name)), "causal", "--max-length", "1024") as servers,
    ):
        together: dict[str, list[float]] = {server.name: [] for server in servers}
        alone: dict[str, list[float]] = {server.name: [] for server in servers}
        cpu: dict[str, list[float]] = {server.name: [] for server in servers}
        for server in servers:
            chat(server, 0, 8)  # warm
        for _ in range(ROUNDS):
            for server in servers:
                used_s = server.cpu_s()
                together[server.name].append(tokens_per_s(server))
                cpu[server.name].append((server.cpu_s() - used_s) / sum(LENGTHS))
                alone[server.name].append(alone_per_s(server))
        peaks = {server.name: server.peak_mib() for server in servers}
        ratios = first_token_ratios(servers[0], folder)
        busy = health_while_busy(servers[0])
        yield from report(together, alone, cpu, ratios, busy, peaks)
    with tempfile.TemporaryDirectory() as name:
        folder = save_model(Path(name))
        yield from by_itself(folder)
        if PEER_SITE:
            yield served("chat_transformers_serve", folder)
            yield served("chat_transformers_serve_batching", folder, *BATCHING)


def served(name: str, folder: Path, *arguments: str) -> Figure:
    """The same load on `transformers serve`."""
    with transformers_serve(folder, *arguments) as server:
        chat(server, 0, 8)  # warm
        rates = [tokens_per_s(server) for _ in range(ROUNDS)]
    note = f"measured last, median of {ROUNDS}"
    return Figure(name=name, value=statistics.median(rates), unit="tokens/s", note=note)


def report(
    together: dict[str, list[float]],
    alone: dict[str, list[float]],
    cpu: dict[str, list[float]],
    ratios: list[float],
    busy: list[float],
    peaks: dict[str, float],
) -> Iterator[Figure]:
    both = {name: statistics.median(values) for name, values in together.items()}
    one = {name: statistics.median(values) for name, values in alone.items()}
    in_turns = f"medians of {ROUNDS} in turns"
    yield Figure(name="chat", value=both["ours"], unit="tokens/s", note=f"{CLIENTS} clients")
    yield Figure(name="chat_alone", value=one["ours"], unit="tokens/s", note="one client")
    yield Figure(
        name="chat_first_token",
        value=statistics.median(ratios),
        unit="of a forward pass",
        at_most=1.5,
        note=f"median of {len(ratios)} streams",
    )
    yield health_figure("chat", busy)
    if PEER_SITE:
        yield Figure(
            name="chat_of_peer",
            value=both["ours"] / both["peer"],
            unit=OF_PEER,
            at_least=4,
            note=f"{CLIENTS} clients, peer {both['peer']:.0f} tokens/s, {in_turns}",
        )
        used = {name: 1000 * statistics.median(values) for name, values in cpu.items()}
        yield Figure(
            name="chat_cpu_of_peer",
            value=used["ours"] / used["peer"],
            unit=OF_PEER,
            note=f"processor time a token, ours {used['ours']:.1f} ms, peer {used['peer']:.1f} ms",
        )
        yield Figure(
            name="chat_alone_of_peer",
            value=one["ours"] / one["peer"],
            unit=OF_PEER,
            at_least=1,
            note=f"one client, peer {one['peer']:.0f} tokens/s, {in_turns}",
        )
        yield memory_figure("chat", peaks)


def save_model(folder: Path) -> Path:
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8000,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[2] = 0  # it hardly ever ends by itself
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def chat(server: Running, number: int, max_tokens: int) -> int:
    """Tokens of one answer."""
    caller = Caller(server.port)
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": PROMPTS[number]}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    answer = json.loads(caller.post("/v1/chat/completions", json.dumps(body).encode()))
    caller.close()
    return int(answer["usage"]["completion_tokens"])


def tokens_per_s(server: Running) -> float:
    counts = [0] * CLIENTS

    def client(number: int) -> None:
        time.sleep(APART_S * number)
        counts[number] = chat(server, number, LENGTHS[number])

    took_s = in_parallel(client, CLIENTS)
    return sum(counts) / took_s


def alone_per_s(server: Running) -> float:
    begun = time.monotonic()
    return chat(server, 0, 48) / (time.monotonic() - begun)


def first_token_ratios(server: Running, folder: Path) -> list[float]:
    """Time to the first piece of a stream over that of one forward pass, turn by turn."""
    model = LlamaForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ratios = []
    for turn in range(9):
        prompt = f"{turn} " + "the quick brown fox " * 75
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.inference_mode():
            begun = time.monotonic()
            model(ids, logits_to_keep=1)
            pass_s = time.monotonic() - begun
        body = json.dumps({"prompt": prompt, "max_tokens": 2, "temperature": 0, "stream": True}).encode()
        caller = Caller(server.port)
        begun = time.monotonic()
        lines = caller.stream("/v1/completions", body)
        next(lines)
        ratios.append((time.monotonic() - begun) / pass_s)
        list(lines)
        caller.close()
    return ratios


def health_while_busy(server: Running) -> list[float]:
    took: list[float] = []
    ended = Event()

    def client(number: int) -> None:
        if number < CLIENTS:
            chat(server, number, 2 * LENGTHS[number])
            ended.set()
            return
        caller = Caller(server.port)
        while not ended.is_set():
            begun = time.monotonic()
            caller.get("/health")
            took.append(time.monotonic() - begun)
            time.sleep(0.01)
        caller.close()

    in_parallel(client, CLIENTS + 1)
    return took


def by_itself(folder: Path) -> Iterator[Figure]:
    """transformers without any server: the ways it can answer the same eight prompts."""
    model = LlamaForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    options = {"do_sample": False, "max_new_tokens": 64, "min_new_tokens": 64}
    begun = time.monotonic()
    for prompt in PROMPTS:
        model.generate(**tokenizer(prompt, return_tensors="pt"), **options)
    yield _alone("generate_one_by_one", CLIENTS * 64 / (time.monotonic() - begun))
    begun = time.monotonic()
    model.generate(**tokenizer(PROMPTS, padding=True, return_tensors="pt"), **options)
    yield _alone("generate_one_batch", CLIENTS * 64 / (time.monotonic() - begun))
    ids = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    model.generation_config.max_new_tokens = 64
    model.generation_config.do_sample = False
    begun = time.monotonic()
    found = model.generate_batch(ids, continuous_batching_config=ContinuousBatchingConfig(num_blocks=64))
    count = sum(len(answer.generated_tokens) for answer in found.values())
    yield _alone("generate_batch", count / (time.monotonic() - begun))


def _alone(name: str, rate: float) -> Figure:
    return Figure(name=name, value=rate, unit="tokens/s", note="transformers without a server")


if __name__ == "__main__":
    show(measure)
