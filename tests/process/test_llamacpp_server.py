"""Commands and explanations of the llama.cpp backend, against the real server."""

import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
import requests

from solarhost.backends.base import HEALTH_PATH, Launch
from solarhost.backends.llamacpp import LlamaCpp
from solarhost.backends.llamacpp_config import owner_of_flag

KEYS = ("first-key", "second,key")
FLAG_COLUMN = 40  # where the descriptions of `--help` begin


def run_to_its_end(argv: tuple[str, ...], memory_kib: int | None = None) -> tuple[list[str], int]:
    """Lines and exit code of a server that is expected to end by itself."""
    if memory_kib:
        argv = ("sh", "-c", f'ulimit -v {memory_kib}; exec "$@"', "sh", *argv)
    done = subprocess.run(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )
    return done.stdout.splitlines(), done.returncode


@pytest.fixture
def backend(llama_server: Path) -> LlamaCpp:
    return LlamaCpp(str(llama_server))


@pytest.fixture
def explain(backend: LlamaCpp, gguf: Path, port: int):
    """Runs a failing start and returns the sentence for it."""

    def run(*more: str, memory_kib: int | None = None, **keys) -> str | None:
        given = {"model": str(gguf), "alias": "a", "host": "127.0.0.1", "ctx_size": 2048, **keys}
        argv = backend.command(backend.schema().load(given), Launch(port, KEYS, None)).argv
        lines, code = run_to_its_end((*argv, *more), memory_kib)
        assert code != 0, lines
        return backend.explain_failure(lines, code)

    return run


def test_all_spellings_of_the_flags_that_the_host_sets_are_refused(llama_server):
    """The list of spellings is that of this build's own help."""
    text = subprocess.run(
        [llama_server, "--help"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    entries = [line[:FLAG_COLUMN] for line in text.splitlines() if line.startswith("-")]
    groups = [re.findall(r"(?<!\S)--?[a-zA-Z][\w.-]*", entry) for entry in entries]
    owned = {flag for group in groups for flag in group if any(owner_of_flag(other) for other in group)}
    assert {
        "--host",
        "--port",
        "-m",
        "--model",
        "-a",
        "--alias",
        "--api-key",
        "--metrics",
        "--slots",
    } <= owned
    assert [flag for flag in sorted(owned) if owner_of_flag(flag) is None] == []


def test_the_command_gives_a_server_that_takes_each_key(backend, gguf, port):
    config = backend.schema().load(
        {"model": str(gguf), "alias": "a:1", "host": "127.0.0.1", "ctx_size": 4096, "threads": 2}
    )
    command = backend.command(config, Launch(port, KEYS, None))
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(
        command.argv, env=command.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            deadline = time.monotonic() + 60
            while not _is_ready(url + HEALTH_PATH):
                assert server.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            for key in KEYS:
                answer = requests.get(f"{url}/v1/models", headers={"X-API-Key": key}, timeout=10)
                assert [model["id"] for model in answer.json()["data"]] == ["a:1"]
            assert (
                requests.get(f"{url}/props", headers={"X-API-Key": "second"}, timeout=10).status_code == 401
            )
            assert backend.probe(url, {"X-API-Key": KEYS[0]}).context_size == 4096
            assert backend.probe(url, {"X-API-Key": "wrong"}).context_size is None
            metrics = requests.get(f"{url}/metrics", headers={"X-API-Key": KEYS[0]}, timeout=10).text
            assert backend.usage(metrics).generated_tokens_total == 0
        finally:
            server.terminate()
    assert backend.probe(url, {}).context_size is None


def _is_ready(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).status_code == 200
    except requests.RequestException:
        return False


def test_a_model_that_is_no_gguf_is_named(explain, tmp_path):
    for name, content in (("bytes.gguf", b"\x93" * 100_000), ("text.gguf", b"hello"), ("empty.gguf", b"")):
        path = tmp_path / name
        path.write_bytes(content)
        assert explain(model=str(path)) == f"{path} is not a GGUF file, or is cut short"


def test_a_model_that_was_cut_short_is_named(explain, tmp_path, gguf):
    for size in (5_000_000, 100_000_000):  # within its header, within its weights
        path = tmp_path / f"{size}.gguf"
        with gguf.open("rb") as whole:
            path.write_bytes(whole.read(size))
        assert "cut short" in explain(model=str(path))


def test_a_model_that_vanished_is_named(explain):
    assert explain("--model", "/none/a.gguf") == (
        "the file /none/a.gguf can't be opened: No such file or directory"
    )


def test_a_projector_that_is_none_is_named(explain, gguf):
    assert explain(mmproj=str(gguf)).startswith(f"the projector {gguf} could not be loaded")


def test_a_flag_that_this_build_does_not_know_is_named(explain):
    sentence = explain(extra_args=["--flag-of-another-build", "1"])
    assert sentence.startswith("this build of llama-server does not know the flag --flag-of-another-build")


def test_a_value_that_it_refuses_is_named_with_its_flag(explain):
    assert explain(devices="CUDA77") == (
        "llama-server does not accept the value of --device: invalid device: CUDA77"
    )
    assert "--chat-template-file: failed to open file '/none.jinja'" in explain(
        "--chat-template-file", "/none.jinja"
    )


def test_a_port_that_is_taken_is_named(explain, port):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()
        assert explain().startswith(f"port {port} on 127.0.0.1 can't be bound: another program holds it")


def test_host_memory_that_ran_out_is_named(explain):
    assert explain(memory_kib=400_000).startswith("out of host memory")
    assert explain(memory_kib=900_000, ctx_size=131072).startswith("out of host memory")


def test_a_model_without_prediction_layers_is_named(explain):
    assert "no layers for multi token prediction" in explain(spec_type="draft-mtp")


def test_a_missing_shared_library_is_named(backend, tmp_path, gguf, port):
    """A program that was linked against a library which is gone, as after an upgrade of the system."""
    compiler = shutil.which("cc")
    (tmp_path / "lib.c").write_text("int answer(void) { return 42; }")
    (tmp_path / "main.c").write_text("int answer(void); int main(void) { return answer(); }")
    library = tmp_path / "libllama-gone.so"
    program = tmp_path / "llama-server"
    subprocess.run([compiler, "-shared", "-o", library, tmp_path / "lib.c"], check=True)
    subprocess.run(
        [compiler, "-o", program, tmp_path / "main.c", f"-L{tmp_path}", "-lllama-gone"], check=True
    )
    library.unlink()
    config = backend.schema().load({"model": str(gguf), "alias": "a"})
    argv = LlamaCpp(str(program)).command(config, Launch(port, KEYS, None)).argv
    lines, code = run_to_its_end(argv)
    assert backend.explain_failure(lines, code).startswith(
        "llama-server misses the shared library libllama-gone"
    )
