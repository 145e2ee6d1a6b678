"""Requests as fast as they are answered, made by `wrk`."""

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

MS = {"us": 0.001, "ms": 1.0, "s": 1000.0}


@dataclass(frozen=True)
class Load:
    """What many connections got."""

    requests: int
    rate: float  # requests a second
    p99_ms: float


def load(
    url: str, headers: Mapping[str, str], connections: int, seconds: float, body: str | None = None
) -> Load:
    """GET `url`, or POST `body` to it, over so many connections.

    Raises:
        RuntimeError: not every request was answered with a 2xx.
    """
    command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--latency"]
    for name, value in headers.items():
        command += ["-H", f"{name}: {value}"]
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        if body is not None:
            script.write(f'wrk.method = "POST"\nwrk.body = {json.dumps(body)}\n')
            script.flush()
            command += ["-s", script.name]
        output = subprocess.check_output([*command, url], text=True)
    count = re.search(r"(\d+) requests in", output)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", output)
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s)", output)
    if not count or not rate or not p99 or "Non-2xx" in output or "Socket errors" in output:
        raise RuntimeError(f"not all requests were answered:\n{output}")
    return Load(int(count[1]), float(rate[1]), float(p99[1]) * MS[p99[2]])
