"""Requests as fast as they are answered, made by `wrk`."""

import re
import subprocess
from dataclasses import dataclass

MS = {"us": 0.001, "ms": 1.0, "s": 1000.0}


@dataclass(frozen=True)
class Load:
    """What many connections got."""

    rate: float  # requests a second
    p99_ms: float


def load(url: str, key: str, connections: int, seconds: float) -> Load:
    """GET `url` over so many connections.

    Raises:
        RuntimeError: not every request was answered with a 2xx.
    """
    command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--latency"]
    output = subprocess.check_output([*command, "-H", f"X-API-Key: {key}", url], text=True)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", output)
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s)", output)
    if not rate or not p99 or "Non-2xx" in output or "Socket errors" in output:
        raise RuntimeError(f"not all requests were answered:\n{output}")
    return Load(float(rate[1]), float(p99[1]) * MS[p99[2]])
