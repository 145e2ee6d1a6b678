"""Every measurement, one after another, in one table: `python -m contrib.bench.run [NAME …]`.

Each bench is a process of its own with a time limit; one that fails becomes a row that says why, beside
the figures that it had by then. Whole measurements go to `docs/bench/` and into `docs/benchmarks.md`,
where those of other benches stay as they are; shortened ones (BENCH_SCALE) to `.bench/`. All together take
at most BENCH_MINUTES; what would begin later is a row too.
"""

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from contrib.bench import results
from contrib.bench.figures import FIGURES, SCALE, Figure, collected
from contrib.bench.picture import draw
from contrib.bench.results import Outcome
from contrib.bench.table import print_table, update_page
from contrib.setup.peer import ensure_peer, ensure_peer_site
from contrib.setup.steps import ROOT, say
from tests.docker_engine import release_mounts

# Name, and the seconds after which it is ended.
BENCHES = {
    "start_overhead": 90,
    "idle": 150,
    "log_intake": 150,
    "stream_latency": 60,
    "rest_throughput": 150,
    "starvation": 150,
    "resources_read": 60,
    "resources_churn": 40,
    "control_link": 300,
    "job_logs": 150,
    "job_queue": 240,
    "pulls": 120,
    "hf_chat": 240,
    "hf_embeddings": 240,
    "page": 240,
    "growth_instances": 400,
    "growth_streams": 180,
    "growth_jobs": 240,
    "growth_models": 240,
    "growth_logs": 300,
}
MINUTES = float(os.environ.get("BENCH_MINUTES", "25"))
ENDED_WITHIN_S = 30.0  # by itself when it is told to
KILLED_WITHIN_S = 30.0
MARK = "SOLARHOST_BENCH_MARK"


def main(names: Sequence[str]) -> int:
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        sys.exit(f"there is no bench {', '.join(unknown)}; there are {', '.join(BENCHES)}")
    names = names or list(BENCHES)
    environment = {**os.environ, **_peers(names)}
    path = results.KEPT if SCALE >= 1 else ROOT / ".bench" / "figures.json"
    earlier = {outcome.bench: outcome for outcome in results.committed()}
    kept, new = results.load(path), []
    for outcome in _outcomes(names, environment):
        new.append(outcome.compared(earlier.get(outcome.bench)))
        # What is finished is never lost, and of what was not begun the kept figures stay.
        merged = results.merged(kept, (outcome for outcome in new if outcome.took_s), BENCHES)
        results.save(merged, path)
    draw(merged, path.parent)
    if path == results.KEPT:
        update_page()
    print_table(new)
    say(f"The figures are in {path.relative_to(ROOT)}")
    return 1 if any(outcome.failure for outcome in new) else 0


def _peers(names: Sequence[str]) -> dict[str, str]:
    """Where the peer is, as the benches want to be told."""
    found: dict[str, Path | None] = {}
    if "PEER" not in os.environ:
        found["PEER"] = ensure_peer()
    if "PEER_SITE" not in os.environ and any(name.startswith("hf_") for name in names):
        found["PEER_SITE"] = ensure_peer_site()
    return {name: str(path) for name, path in found.items() if path}


def _outcomes(names: Sequence[str], environment: Mapping[str, str]) -> Iterator[Outcome]:
    deadline = time.monotonic() + 60 * MINUTES
    for name in names:
        left_s = deadline - time.monotonic()
        if left_s < 0:
            yield _outcome(name, environment, failure=f"not begun: the {MINUTES:g} minutes were over")
            continue
        say(name)
        yield measure(name, min(BENCHES[name], left_s), environment)


def measure(name: str, limit_s: float, environment: Mapping[str, str]) -> Outcome:
    """One bench, to its end or its limit; no process and no file of it is left afterwards."""
    mark = secrets.token_hex(16)
    began = time.monotonic()
    with _temporary_folder() as folder:
        sink, errors = folder / "figures", folder / "errors"
        sink.touch()
        with errors.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", f"contrib.bench.{name}"],
                cwd=ROOT,
                env={**environment, "TMPDIR": str(folder), FIGURES: str(sink), MARK: mark},
                stdin=subprocess.DEVNULL,
                stderr=output,
                start_new_session=True,
            )
            try:
                code = process.wait(limit_s)
                failure = None if code == 0 else _reason(errors, code)
            except subprocess.TimeoutExpired:
                failure = f"not done after {limit_s:.0f} s"
            finally:
                _end(process, mark)
        if failure:
            print(f"{name}: {failure}", flush=True)
        return _outcome(name, environment, tuple(collected(sink)), failure, time.monotonic() - began)


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """For all that a bench writes; a Docker engine that was killed leaves mounts there."""
    with tempfile.TemporaryDirectory(prefix="solarhost-bench-", ignore_cleanup_errors=True) as name:
        try:
            yield Path(name)
        finally:
            release_mounts(Path(name))


def _outcome(
    name: str,
    environment: Mapping[str, str],
    figures: tuple[Figure, ...] = (),
    failure: str | None = None,
    took_s: float = 0.0,
) -> Outcome:
    return Outcome(
        bench=name,
        figures=figures,
        failure=failure,
        took_s=round(took_s, 1),
        at=results.now(),
        commit=results.commit(),
        machine=results.machine(),
        peer="PEER" in environment,
    )


def _reason(errors: Path, code: int) -> str:
    """The last thing it said."""
    lines = [line.strip() for line in errors.read_text(errors="replace").splitlines() if line.strip()]
    return (lines[-1] if lines else f"ended with {code}")[:300]


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """Ask it to end, then end by force whatever carries its mark or is in its session."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(ENDED_WITHIN_S)
    left = [found for found in psutil.process_iter() if _belongs(found, process.pid, mark)]
    for found in left:
        with suppress(psutil.NoSuchProcess):
            found.kill()
    process.wait()
    psutil.wait_procs(left, KILLED_WITHIN_S)


def _belongs(found: psutil.Process, session: int, mark: str) -> bool:
    try:
        return os.getsid(found.pid) == session or found.environ().get(MARK) == mark
    except (OSError, psutil.Error):
        return False


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    sys.exit(main(sys.argv[1:]))
