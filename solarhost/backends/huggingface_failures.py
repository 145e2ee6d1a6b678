"""What the last lines of an hf_server that ended say about the cause."""

import signal
from collections.abc import Sequence

from solarhost.backends.key_values import key_values

_OUT_OF_MEMORY = ("CUDA out of memory", "OutOfMemoryError", "not enough memory: you tried to allocate")


def explain(lines: Sequence[str], exit_code: int | None) -> str | None:
    """One sentence on why it ended, or None. `exit_code` is negative for a signal, as in `Popen`."""
    for line in reversed(lines):
        fields = key_values(line)
        if fields.get("event") == "start_failed" and "message" in fields:
            return fields["message"]
    for line in reversed(lines):
        if any(words in line for words in _OUT_OF_MEMORY):
            return f"out of memory: use a smaller model, number type or max_length ({line.strip()[:300]})"
        if "Address already in use" in line or "Connection in use" in line:
            return "the port is taken by another program"
        if "No module named" in line:
            return f"a Python package is missing: {line.strip()[:300]}"
        if "Perhaps out of memory?" in line:
            return "the model's process was killed, as the kernel does when host memory runs out"
        if key_values(line).get("event") == "worker_died":
            return "the model's process died; the lines before say more, if anything does"
        if line.startswith("python -m hf_server: error:"):
            return line.removeprefix("python -m hf_server: error:").strip()
    if exit_code == -signal.SIGKILL:
        return "killed (SIGKILL), as the kernel's OOM killer does when host memory runs out"
    return None
