"""What the end of a child means: a reason and one sentence for the operator."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from solarhost.instances.status import Reason

GPU_OUT_OF_MEMORY = re.compile(
    r"(?:cuda|hip|vulkan|metal|device memory|gpu)[^\n]{0,120}out of memory|OutOfDeviceMemory"
    r"|cudaMalloc failed"
    r"|failed to allocate (?:CUDA|ROCm|Vulkan|Metal)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a child ended. Both fields are None when it was not ours to reap (an adopted one)."""

    code: int | None
    signal_name: str | None

    @classmethod
    def from_wait(cls, status: int | None) -> "Exit":
        """From what `Popen.wait` gives: negative for a signal, None when nobody could tell."""
        if status is None or status >= 0:
            return cls(status, None)
        try:
            return cls(None, signal.Signals(-status).name)
        except ValueError:  # a real-time signal
            return cls(None, f"signal {-status}")

    def __str__(self) -> str:
        if self.signal_name:
            return f"ended by {self.signal_name}"
        if self.code is None:
            return "ended; it was adopted, so its exit code is not known"
        return f"exited with code {self.code}"


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a child ended, for `reason` and `error_message`."""

    reason: Reason
    message: str


def explain(end: Exit, lines: Sequence[str], cause: str | None, out_of_memory: bool) -> Ending:
    """Judge an end that nobody asked for.

    Args:
        end: how it ended.
        lines: its last log lines.
        cause: what the backend reads from them, one sentence.
        out_of_memory: the kernel killed something for lack of memory while this child ran.
    """
    if end.signal_name == "SIGKILL" and out_of_memory:
        return Ending(
            Reason.HOST_OOM,
            "killed by SIGKILL while the kernel was out of memory: use a smaller model or context, "
            "or free RAM on this machine",
        )
    told = f"{cause} ({end})" if cause else None
    if any(GPU_OUT_OF_MEMORY.search(line) for line in lines):
        return Ending(Reason.GPU_OOM, told or f"out of GPU memory ({end})")
    if end.signal_name:
        hint = (
            " (nobody here sent it; the out-of-memory killer sends SIGKILL)"
            if end.signal_name == "SIGKILL"
            else ""
        )
        return Ending(Reason.CRASHED, told or f"the server was {end}{hint}{_last_words(lines)}")
    return Ending(Reason.EXITED, told or f"the server {end}{_last_words(lines)}")


def _last_words(lines: Sequence[str]) -> str:
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"; its last line: {last[:300]}" if last else "; it printed nothing"
