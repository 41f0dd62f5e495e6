"""The result of a benchmark as `ones bench NAME --json` prints it, and its rounded values."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np


def bench_result(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows with commit, load and time. The keys are documented in results.md."""
    return {
        "bench": name,
        "commit": commit_of_checkout(),
        "load_average": round(os.getloadavg()[0], 2),
        "measured_at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": len(os.sched_getaffinity(0)),
        "rows": rows,
    }


def origin_sentence(result: Mapping[str, Any]) -> str:
    """Date, commit, machine and load of a result, for the text below a table."""
    at, cores = result.get("measured_at", "date not noted"), result.get("cores", "?")
    return (
        f"Measured {at} at commit {result['commit']} on {cores} cores;"
        f" load average at the end {result['load_average']}."
    )


def percentile_ms(seconds: Sequence[float], q: float) -> float:
    """
    >>> percentile_ms([0.001, 0.002, 0.003], 50)
    2.0
    """
    return round(1000 * float(np.percentile(seconds, q)), 2)


def commit_of_checkout() -> str | None:
    """Commit of the checkout that this code runs from; None outside a checkout."""
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
