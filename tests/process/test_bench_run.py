"""A bench is a program that may fail or hang, and what it starts must not outlive it."""

import os
import secrets
import tempfile

import psutil
import pytest

from contrib.bench import run


@pytest.mark.parametrize("grace_s", [run.ENDED_WITHIN_S, 0.0], ids=["told to end", "killed at once"])
def test_a_bench_that_takes_too_long_is_a_row_and_leaves_nothing(monkeypatch, tmp_path, grace_s):
    monkeypatch.setattr(run, "ENDED_WITHIN_S", grace_s)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    token = secrets.token_hex(8)
    outcome = run.measure("stream_latency", 3.0, {**os.environ, "BENCH_TEST": token})
    assert outcome.failure == "not done after 3 s"
    assert [process for process in psutil.process_iter() if has(process, token)] == []
    assert list(tmp_path.iterdir()) == []


def test_a_bench_that_fails_says_why():
    outcome = run.measure("rest_throughput", 60.0, {**os.environ, "PEER": "/nowhere"})
    assert outcome.failure.startswith("FileNotFoundError")
    assert "/nowhere/bin/solar-host" in outcome.failure


def has(process: psutil.Process, token: str) -> bool:
    try:
        return process.environ().get("BENCH_TEST") == token
    except psutil.Error:
        return False
