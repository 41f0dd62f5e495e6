"""`ones bench faults`: many seeds of the fault simulation, as rows."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ones.lab.faults import KINDS, FaultRunResult, run_seed

PROGRESS_SEEDS = 50  # between two lines of progress


def bench_faults(
    seeds: Sequence[int],
    *,
    policy: str | None = None,
    kinds: Collection[str] = tuple(KINDS),
    progress: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """One row for each policy that ran, and one for all of them."""
    _silence_logs()
    results: list[tuple[FaultRunResult, float]] = []
    for number, seed in enumerate(seeds, 1):
        began = time.perf_counter()
        result = run_seed(seed, policy=policy, kinds=kinds)
        results.append((result, time.perf_counter() - began))
        for violation in result.violations:
            progress(f"seed {seed} ({result.policy}): {violation}")
        if number % PROGRESS_SEEDS == 0:
            progress(f"{number} of {len(seeds)} seeds")
    policies = sorted({result.policy for result, _ in results})
    rows = [_row(name, [each for each in results if each[0].policy == name]) for name in policies]
    return [*rows, _row("all", results)] if len(rows) > 1 else rows


def replay_seed(
    seed: int, *, policy: str | None = None, kinds: Collection[str] = tuple(KINDS)
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The row of one seed, and its trace line by line."""
    _silence_logs()
    began = time.perf_counter()
    result = run_seed(seed, policy=policy, kinds=kinds, keep_trace=True)
    return [_row(result.policy, [(result, time.perf_counter() - began)])], result.trace


def _silence_logs() -> None:
    """The controller logs every simulated fault as a warning; the trace of a seed has them all."""
    logging.getLogger("ones").addHandler(logging.NullHandler())


def _row(case: str, results: Sequence[tuple[FaultRunResult, float]]) -> dict[str, Any]:
    faults: Counter[str] = Counter()
    for result, _ in results:
        faults += result.faults
    virtual = sum(result.virtual_seconds for result, _ in results)
    seconds = sum(seconds for _, seconds in results)
    return {
        "case": case,
        "seeds": len(results),
        "n": len(results),
        "virtual_hours": round(virtual / 3600, 2),
        "faults": dict(sorted(faults.items())),
        "violations": [
            {"seed": result.seed, "what": what}
            for result, _ in results
            for what in result.violations
        ],
        "seeds_per_second": round(len(results) / seconds, 2),
    }
