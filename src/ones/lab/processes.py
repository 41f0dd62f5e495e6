"""Processes: work in a fresh one, a clean standard output, and what a process uses."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from ones.errors import WorldError

_TICKS = os.sysconf("SC_CLK_TCK")

Returned = TypeVar("Returned")


def run_in_process(work: Callable[..., Returned], *arguments: Any) -> Returned:
    """Calls `work` in a fresh process, so that memory and caches are its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


@contextmanager
def results_only() -> Iterator[None]:
    """Keeps standard output free for results.

    Output of Python code (a user's policy) goes to standard error. Output of C code (the solver
    of `sia`) is dropped, because it would break the progress lines.
    """
    sys.stdout.flush()
    stdout = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        ctypes.CDLL(None).fflush(None)  # C has its own buffer
        os.dup2(stdout, 1)
        os.close(stdout)


def own_peak_mb() -> float:
    """Peak memory of this process."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def memory_mb(pid: int) -> float:
    """Resident memory, with the files of libraries."""
    return _megabytes(pid, "status", "VmRSS:")


def private_memory_mb(pid: int) -> float:
    """Anonymous memory: the part that no other process can share."""
    return _megabytes(pid, "smaps_rollup", "Anonymous:")


def peak_memory_mb(pid: int) -> float:
    return _megabytes(pid, "status", "VmHWM:")


def _megabytes(pid: int, file: str, key: str) -> float:
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(key):
            return round(int(line.split()[1]) / 1024, 1)
    raise WorldError(f"process {pid} is gone")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def cpu_percent(pid: int, seconds: float) -> float:
    """Use of one core over the next `seconds`."""
    before, began = cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return round(100 * (cpu_seconds(pid) - before) / (time.monotonic() - began), 2)
