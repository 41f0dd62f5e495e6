"""Division of GPUs among jobs; the cost of each job depends on its own number of GPUs only.

The best division is found exactly (min-plus dynamic programming, O(jobs x GPUs x sizes)) and is the
reference for every search; `greedy` is the simple alternative.

A table has a row for each job: its cost with 0, 1, 2, ... GPUs. A job gets none, or between `least`
and `most`.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Flags = NDArray[np.bool_]


def exact(
    table: Floats,
    least: Ints,
    most: Ints,
    gpus: int,
    *,
    must_run: Flags | None = None,
    use_all: bool = True,
) -> Ints:
    """The cheapest division; with `use_all`, among those that use the most GPUs.

    Raises ValueError if the jobs of `must_run` do not fit.
    """
    from ones.models.allocation_kernels import divide

    must = np.zeros(len(table), np.bool_) if must_run is None else must_run
    counts = divide(*_typed(table, least, most), gpus, must.astype(np.bool_), use_all)
    if not len(counts):
        raise ValueError("the jobs that must run do not fit on the GPUs")
    return counts


def greedy(table: Floats, least: Ints, most: Ints, gpus: int) -> Ints:
    """Repeats the step that adds least cost: start a job with its minimum, or add one GPU."""
    counts = np.zeros(len(table), np.int32)
    steps = [
        ((table[job, least[job]] - table[job, 0]) / least[job], job)
        for job in range(len(table))
        if most[job] > 0
    ]
    heapify(steps)
    left = gpus
    while steps and left > 0:
        _, job = heappop(steps)
        now = counts[job]
        to = now + 1 if now else least[job]
        if to - now > left:
            continue
        counts[job], left = to, left - int(to - now)
        if to < most[job]:
            heappush(steps, (table[job, to + 1] - table[job, to], job))
    return counts


def next_sizes(table: Floats, least: Ints, most: Ints) -> Ints:
    """For every size of a job, the larger one that adds least cost per GPU (the lower hull).

    A job at its limit stays there, as does one that may not run.
    """
    from ones.models.allocation_kernels import hull

    return hull(*_typed(table, least, most))


def total(table: Floats, counts: Ints) -> float:
    return float(table[np.arange(len(table)), counts].sum())


def _typed(table: Floats, least: Ints, most: Ints) -> tuple[Floats, Ints, Ints]:
    return (
        np.ascontiguousarray(table, np.float64),
        np.ascontiguousarray(least, np.int32),
        np.ascontiguousarray(most, np.int32),
    )
