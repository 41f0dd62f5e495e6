"""Standard output for results only, and what a process uses."""

from __future__ import annotations

import ctypes
import os

import pytest

from ones.lab.bench.result import percentile_ms
from ones.lab.processes import cpu_seconds, memory_mb, private_memory_mb, results_only


def test_what_a_library_prints_is_no_result(capfd: pytest.CaptureFixture[str]) -> None:
    libc = ctypes.CDLL(None)
    with results_only():
        libc.printf(b"from a solver\n")
        print("from a user's policy")
    libc.printf(b"ours\n")
    libc.fflush(None)
    assert capfd.readouterr() == ("ours\n", "from a user's policy\n")


def test_a_process_is_measured() -> None:
    me = os.getpid()
    assert 10 < private_memory_mb(me) <= memory_mb(me)
    before = cpu_seconds(me)
    while cpu_seconds(me) == before:
        pass
    assert percentile_ms([0.1] * 99 + [10.0], 50) == 100.0
