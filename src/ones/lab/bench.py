"""What all benchmarks share: the frame of their output, and a process of its own for each case."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, redirect_stdout
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")


def framed(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What `ones bench NAME --json` prints; the keys are a promise."""
    return {
        "bench": name,
        "commit": _commit(),
        "load_average": round(os.getloadavg()[0], 2),
        "measured_at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": len(os.sched_getaffinity(0)),
        "rows": rows,
    }


def alone(work: Callable[..., Result], *arguments: Any) -> Result:
    """Call it in a fresh process, so that its memory and caches are its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


@contextmanager
def results_only() -> Iterator[None]:
    """Standard output is for results. What Python prints meanwhile (somebody's own policy) goes to
    standard error; what C prints (the solver of `sia`, left in by its authors) goes nowhere, as it
    would only tear our lines of progress."""
    sys.stdout.flush()
    ours = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        ctypes.CDLL(None).fflush(None)  # C keeps its own buffer
        os.dup2(ours, 1)
        os.close(ours)


def peak_mb() -> float:
    """Most memory that this process has held."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def _commit() -> str | None:
    """Of the checkout that this code runs from; None when it is installed without one."""
    here = Path(__file__).resolve().parent
    try:
        found = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
