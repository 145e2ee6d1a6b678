"""What the last lines of a llama-server that ended say about the cause.

Each pattern has its sentence. The order is that of certainty: a line that names the cause comes
before the general ones that follow it in every log ("failed to load model").
"""

import re
import signal
from collections.abc import Callable, Sequence

Explain = Callable[[re.Match[str]], str]

_NOT_A_GGUF = re.compile(r"failed to load (?:CLIP )?model from (.+)")

_CAUSES: list[tuple[re.Pattern[str], Explain]] = [
    (
        re.compile(r"error while loading shared libraries: ([^:]+): (.+)"),
        lambda m: (
            f"llama-server misses the shared library {m[1]} ({m[2]}): reinstall it, or name the "
            "library's folder in LD_LIBRARY_PATH"
        ),
    ),
    (
        re.compile(r"version [`'](\S+)' not found \(required by (\S+)\)"),
        lambda m: f"llama-server was built for a newer system: {m[2]} needs {m[1]}",
    ),
    (
        re.compile(r"error: (?:invalid|unknown) argument: (\S+)"),
        lambda m: (
            f"this build of llama-server does not know the flag {m[1]}: update llama-server, or take "
            "the setting out of the config"
        ),
    ),
    (
        re.compile(r'error while handling argument "([^"]+)": (?:error: )?(.+)'),
        lambda m: f"llama-server does not accept the value of {m[1]}: {m[2]}",
    ),
    (
        re.compile(r"error while handling environment variable \"([^\"]+)\": (.+)"),
        lambda m: f"llama-server does not accept the environment variable {m[1]}: {m[2]}",
    ),
    (
        re.compile(r"couldn't bind HTTP server socket, hostname: (.*), port: (\d+)"),
        lambda m: (
            f"port {m[2]} on {m[1]} can't be bound: another program holds it, or the address is not "
            "one of this machine"
        ),
    ),
    (
        re.compile(
            r"allocating ([\d.]+ MiB) on device (\d+): (?:cuda|hip)Malloc failed: out of memory",
            re.IGNORECASE,
        ),
        lambda m: (
            f"out of GPU memory: {m[1]} more did not fit on device {m[2]}; lower n_gpu_layers or "
            "ctx_size, or free the device"
        ),
    ),
    (
        re.compile(
            r"(?:CUDA|HIP|ROCm) error: out of memory|Malloc failed: out of memory|ErrorOutOfDeviceMemory"
            r"|failed to allocate (?:CUDA|ROCm|Vulkan|SYCL|MUSA|Metal)\d* buffer"
            r"|failed to allocate Metal buffer|OutOfMemory \(|not enough VRAM"
        ),
        lambda _: "out of GPU memory: lower n_gpu_layers or ctx_size, or free the device",
    ),
    (
        re.compile(r"insufficient memory \(attempted to allocate\s+([\d.]+ \w+)\)"),
        lambda m: f"out of host memory: {m[1]} more could not be had; lower ctx_size or stop something else",
    ),
    (
        re.compile(r"Cannot allocate memory|std::bad_alloc|failed to allocate CPU\w* buffer"),
        lambda _: "out of host memory: take a smaller model or ctx_size, or stop something else",
    ),
    (
        re.compile(r"unknown model architecture: '([^']+)'"),
        lambda m: (
            f"this build of llama-server does not know the model architecture {m[1]}: update llama-server"
        ),
    ),
    (
        re.compile(r"failed to open (?:GGUF file )?'?([^'\n]+?)'? \((.+)\)"),
        lambda m: f"the file {m[1]} can't be opened: {m[2]}",
    ),
    (
        re.compile(r"failed to open ([^:\n]+\.gguf): (.+)"),
        lambda m: f"the file {m[1]} can't be opened: {m[2]}",
    ),
    (
        re.compile(r"is not within the file bounds|model is corrupted or incomplete"),
        lambda _: "the model file is cut short: fetch it again",
    ),
    (
        re.compile(r"doesn't contain MTP layers"),
        lambda _: "the model has no layers for multi token prediction, so spec_type draft-mtp can't serve it",
    ),
    (
        re.compile(r"failed to load multimodal model, '(.+)'"),
        lambda m: (
            f"the projector {m[1]} could not be loaded: it is damaged, or not a projector of this model"
        ),
    ),
    (
        re.compile(r"failed to load draft model, '(.+)'"),
        lambda m: f"the draft model {m[1]} could not be loaded",
    ),
]

_DAMAGED = re.compile(
    r"invalid magic characters|bad magic|failed to read (?:magic|key-value pairs|header|tensor)"
    r"|gguf_init_from_\w+: failed"
)

_SIGNALS = {
    signal.SIGKILL: "killed (SIGKILL), as the kernel's OOM killer does when host memory runs out; "
    "`dmesg` would name it",
    signal.SIGILL: "it used an instruction that this CPU lacks (SIGILL): take another build of llama-server",
    signal.SIGSEGV: "it crashed (SIGSEGV)",
    signal.SIGABRT: "it gave up (SIGABRT)",
    signal.SIGBUS: "it crashed (SIGBUS), as happens when a mapped model file shrinks or its disk fails",
}
_LAST_WORDS = re.compile(r"GGML_ASSERT|GGML_ABORT|what\(\):|(?:CUDA|HIP) error")


def explain(lines: Sequence[str], exit_code: int | None) -> str | None:
    """One sentence on why it ended, or None. `exit_code` is negative for a signal, as in `Popen`."""
    for pattern, sentence in _CAUSES:
        for line in lines:
            if match := pattern.search(line):
                return sentence(match)
    if any(_DAMAGED.search(line) for line in lines):
        path = next((match[1] for line in lines if (match := _NOT_A_GGUF.search(line))), "the model file")
        return f"{path} is not a GGUF file, or is cut short"
    if exit_code is not None and -exit_code in _SIGNALS:
        last_words = next((line.strip() for line in reversed(lines) if _LAST_WORDS.search(line)), None)
        crash = _SIGNALS[signal.Signals(-exit_code)]
        return f"{crash}: {last_words}" if last_words else crash
    return None
