"""A pull from a registry against a plain download plus sha256 of the same bytes, and a cached pull.

At most 1.3 times, and 20 ms. Both come over TLS from a real registry on loopback, in turns.
"""

import hashlib
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from contrib.bench.agents import running_agent
from contrib.bench.figures import Figure, show, times
from tests.agent import Agent
from tests.process.models_registry import PASSWORD, USER, Registry

PAIRS = 3
CACHED = times(20)
MIB = 1 << 20
SIZE_MIB = times(1024)
BODY = {"source": "harbor", "source_uri": "repo://bench:v1", "harbor_ref": "lib/bench:v1"}


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="solarhost-bench-") as name:
        folder = Path(name)
        artifact = folder / "artifact"
        with artifact.open("wb") as file:
            for _ in range(SIZE_MIB):
                file.write(random.randbytes(MIB))
        with artifact.open("rb") as file:
            digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        registry = Registry(folder)
        try:
            registry.push("lib/bench", [("model.gguf", artifact)])
            settings = {
                "HARBOR_URL": registry.url,
                "HARBOR_USERNAME": USER,
                "HARBOR_PASSWORD": PASSWORD,
                "SSL_CERT_FILE": str(registry.authority.ca),
            }
            with running_agent(**settings) as agent:
                pairs = [(_plain_s(registry, folder, digest), _pull_s(agent)) for _ in range(PAIRS)]
                cached_ms = statistics.median(1000 * _timed(lambda: _pull(agent)) for _ in range(CACHED))
        finally:
            registry.end()
    ratios = [pull / plain for plain, pull in pairs]
    yield Figure(
        name="pull",
        value=statistics.median(ratios),
        unit="of a download and its sha256",
        at_most=1.3,
        note=f"{SIZE_MIB} MiB, {statistics.median(pull for _, pull in pairs):.1f} s against "
        f"{statistics.median(plain for plain, _ in pairs):.1f} s, medians of {PAIRS} in turns",
    )
    yield Figure(
        name="pull_cached",
        value=cached_ms,
        unit="ms",
        at_most=20,
        note=f"POST /models/pull of a model that is here, median of {CACHED}",
    )


def _plain_s(registry: Registry, folder: Path, digest: str) -> float:
    """Seconds of `curl` and `sha256sum`."""
    access = [{"type": "repository", "name": "lib/bench", "actions": ["pull"]}]
    curl = ["curl", "-sSf", "--cacert", str(registry.authority.ca)]
    curl += ["-H", f"Authorization: Bearer {registry.authority.token(access)}"]
    target = folder / "plain"

    def fetch() -> None:
        subprocess.run([*curl, "-o", str(target), f"{registry.url}/v2/lib/bench/blobs/{digest}"], check=True)
        subprocess.run(["sha256sum", str(target)], check=True, capture_output=True)

    took_s = _timed(fetch)
    target.unlink()
    return took_s


def _pull_s(agent: Agent) -> float:
    """Seconds of the request; the model is deleted before."""
    agent.request("DELETE", "/models/repo--bench--v1")
    return _timed(lambda: _pull(agent))


def _pull(agent: Agent) -> None:
    answer = agent.post("/models/pull", BODY, timeout=600)
    assert answer.status_code == 200, answer.text


def _timed(work: Callable[[], None]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


if __name__ == "__main__":
    show(measure)
