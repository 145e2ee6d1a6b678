"""What is read out of a server's last lines, where the real one can't be made to say it here."""

import signal

import pytest

from solarhost.backends.llamacpp_failures import explain

LOADING = [
    "llama_model_load: error loading model: unable to allocate CUDA0 buffer",
    "llama_model_load_from_file_impl: failed to load model",
    "srv    load_model: failed to load model, '/models/a.gguf'",
]


@pytest.mark.parametrize(
    ("line", "beginning"),
    [
        (
            "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device 1: "
            "cudaMalloc failed: out of memory",
            "out of GPU memory: 4096.00 MiB more did not fit on device 1",
        ),
        ("CUDA error: out of memory", "out of GPU memory"),
        ("ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 123", "out of GPU memory"),
        ("ggml_gallocr_reserve_n: failed to allocate Vulkan0 buffer of size 123", "out of GPU memory"),
        ("ggml_vulkan: Device memory allocation failed: ErrorOutOfDeviceMemory", "out of GPU memory"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "out of host memory"),
        (
            "llama_model_load: error loading model: unknown model architecture: 'newarch'",
            "this build of llama-server does not know the model architecture newarch",
        ),
        (
            "./llama-server: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found "
            "(required by ./llama-server)",
            "llama-server was built for a newer system: ./llama-server needs GLIBC_2.38",
        ),
        ("error: unknown argument: --slots", "this build of llama-server does not know the flag --slots"),
        (
            "llama_model_load: error loading model: failed to open /m/a.gguf: No such file or directory",
            "the file /m/a.gguf can't be opened: No such file or directory",
        ),
        ("error: failed to open '/m/a.gguf' (Permission denied)", "the file /m/a.gguf can't be opened"),
        (
            "tensor 'blk.0' data is not within the file bounds, model is corrupted or incomplete",
            "the model file is cut short",
        ),
    ],
)
def test_the_line_with_the_cause_is_found_among_general_ones(line, beginning):
    sentence = explain(["0.00.001 I srv: initializing ...", line, *LOADING], 1) or ""
    assert sentence.startswith(beginning)


def test_a_signal_is_named_when_no_line_says_more():
    assert "SIGKILL" in explain(["loading"], -signal.SIGKILL)
    assert "OOM killer" in explain(["loading"], -signal.SIGKILL)
    assert "CPU lacks" in explain([], -signal.SIGILL)
    assert explain(["a", "ggml.c:1: GGML_ASSERT(x > 0) failed", "b"], -signal.SIGABRT) == (
        "it gave up (SIGABRT): ggml.c:1: GGML_ASSERT(x > 0) failed"
    )


@pytest.mark.parametrize("code", [None, 0, 1, 127, -signal.SIGTERM, -64, -200])
def test_nothing_is_made_up(code):
    assert explain(["srv: something else", "main: exiting"], code) is None
