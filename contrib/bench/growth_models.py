"""How the agent grows with the models in its manifest, 1 to 10,000 of three files."""

from collections.abc import Iterator
from pathlib import Path

from contrib.bench.agents import get_ms, median_ms, memory_mib, running_agent, start_ms, timed_ms
from contrib.bench.figures import SCALE, Figure, show
from contrib.bench.growth import IN_PROPORTION, Growth
from solarhost.files import write_json
from solarhost.modelstore.manifest import Entry, FileStamp
from solarhost.times import now_iso
from tests.agent import Agent

SIZES = (1, 10, 100, 1000, 10_000) if SCALE >= 1 else (1, 10, 100, 1000)
FILES = ("config.json", "model.safetensors", "tokenizer.json")


def measure() -> Iterator[Figure]:
    growth = Growth("growth_models")
    growth.curve("start", "start of the agent", "ms", IN_PROPORTION)
    growth.curve("list", "GET /models", "ms", IN_PROPORTION)
    growth.curve("cached", "POST /models/pull of one that is here", "ms", IN_PROPORTION)
    growth.curve("delete", "DELETE of one", "ms", IN_PROPORTION)
    growth.curve("memory", "memory", "MiB", IN_PROPORTION)
    with running_agent() as agent:
        try:
            for size in SIZES:
                agent.stop()
                _fill(agent.folder / "models", size)
                growth.add(size, start=start_ms(agent))
                assert len(agent.get("/models").json()) == size
                growth.add(size, list=get_ms(agent, "/models"), cached=median_ms(lambda: _pull(agent)))
                growth.add(size, memory=memory_mib(agent))
                growth.add(size, delete=timed_ms(lambda: _delete(agent)))
        finally:
            yield from growth.figures()


def _fill(folder: Path, size: int) -> None:
    """A models folder as that many pulls would have left it."""
    entries = [_entry(folder, number) for number in range(size)]
    write_json(folder / "manifest.json", {"models": [entry.as_json(folder) for entry in entries]}, 0o644)


def _entry(folder: Path, number: int) -> Entry:
    slug = f"hf--bench--model-{number}"
    (folder / slug).mkdir(parents=True, exist_ok=True)
    stamps = {}
    for name in FILES:
        path = folder / slug / name
        path.touch()
        stamps[name] = FileStamp(0, path.stat().st_mtime_ns)
    return Entry(
        slug=slug,
        source_uri=f"huggingface://bench/model-{number}",
        size_bytes=0,
        downloaded_at=now_iso(),
        file_digests=dict.fromkeys(FILES, 64 * "0"),
        revision=40 * "0",
        files=stamps,
    )


def _pull(agent: Agent) -> None:
    body = {"source": "huggingface", "source_uri": "huggingface://bench/model-0", "model_id": "bench/model-0"}
    answer = agent.post("/models/pull", body)
    assert answer.status_code == 200 and answer.json()["cached"], answer.text


def _delete(agent: Agent) -> None:
    answer = agent.request("DELETE", "/models/hf--bench--model-0")
    assert answer.status_code == 200, answer.text


if __name__ == "__main__":
    show(measure)
