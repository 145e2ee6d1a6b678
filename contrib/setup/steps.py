"""Telling what goes on, and running what takes long."""

import fcntl
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

PROGRESS_EVERY_S = 10.0
SHOWN_ON_FAILURE = 30  # lines

ROOT = Path(__file__).resolve().parents[2]


def cache() -> Path:
    """Where what takes long to get is kept for all checkouts of this user."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "solar-host"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


def run(
    title: str, argv: Sequence[str], env: Mapping[str, str] | None = None, meanwhile: str = "still at it"
) -> None:
    """Run a command with its output in a file, and print every few seconds how long it takes and what is new.

    Args:
        meanwhile: printed where there is no new line.

    Raises:
        SystemExit: it failed; its last lines were printed.
    """
    say(title)
    log = cache() / "setup.log"
    started = time.monotonic()
    shown = ""
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=ROOT,
            )
        except OSError as error:
            raise SystemExit(f"{title}: {argv[0]} can't be run: {error}") from error
        try:
            while True:
                try:
                    code = process.wait(PROGRESS_EVERY_S)
                    break
                except subprocess.TimeoutExpired:
                    line = newest_line(log)
                    text = line if line != shown else meanwhile
                    shown = line
                    print(f"    {time.monotonic() - started:4.0f} s  {text or meanwhile}", flush=True)
        except BaseException:  # Ctrl-C: what was started ends with us
            process.terminate()
            process.wait()
            raise
    if code != 0:
        lines = log.read_text(errors="replace").splitlines()[-SHOWN_ON_FAILURE:]
        print("\n".join(f"    {line}" for line in lines), flush=True)
        raise SystemExit(f"{title}: failed with exit code {code}; all of its output is in {log}")


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Hold a lock, so that two runs at once don't do the same work into the same folder."""
    with (cache() / f"{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Waiting for another run that does this already ({name})")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def newest_line(log: Path) -> str:
    """The last line with text in it, warnings apart; empty if there is none."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 2000))
        lines = file.read().decode(errors="replace").replace("\r", "\n").splitlines()
    return next((line.strip()[:90] for line in reversed(lines) if line.strip() and "WARNING" not in line), "")
