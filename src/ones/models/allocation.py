"""How many GPUs each job gets, when every job's cost depends on its own number alone.

Then the best division is known exactly (min-plus dynamic programming, O(jobs x GPUs x
sizes)): the yardstick of every search. `greedy` is what one would do without it.

A table has a row for each job: its cost with 0, 1, 2, ... GPUs. A job gets none, or
between `least` and `most` of them.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf

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

    ValueError if the jobs of `must_run` do not fit.
    """
    from ones.models.allocation_kernels import divide

    must = np.zeros(len(table), np.bool_) if must_run is None else must_run
    return _checked(divide(*_typed(table, least, most), gpus, must.astype(np.bool_), use_all))


def exact_reference(
    table: Floats,
    least: Ints,
    most: Ints,
    gpus: int,
    *,
    must_run: Flags | None = None,
    use_all: bool = True,
) -> Ints:
    """As `exact`, to be read: `cheapest[u]` is the least cost with exactly u GPUs in use."""
    cheapest = np.full(gpus + 1, inf)
    cheapest[0] = 0.0
    choices = np.zeros((len(table), gpus + 1), np.int32)
    for job in range(len(table)):
        forced = must_run is not None and bool(must_run[job])
        before, cheapest = cheapest, np.full(gpus + 1, inf)
        for c in _sizes(int(least[job]), int(most[job]), gpus, forced=forced):
            with_c = np.full(gpus + 1, inf)
            with_c[c:] = before[: gpus + 1 - c] + table[job, c]
            better = with_c < cheapest
            cheapest[better] = with_c[better]
            choices[job, better] = c
    reachable = np.flatnonzero(np.isfinite(cheapest))
    if not len(reachable):
        return _checked(np.zeros(0, np.int32))
    used = int(reachable[-1]) if use_all else int(np.argmin(cheapest))
    counts = np.zeros(len(table), np.int32)
    for job in reversed(range(len(table))):
        counts[job] = choices[job, used]
        used -= counts[job]
    return counts


def greedy(table: Floats, least: Ints, most: Ints, gpus: int) -> Ints:
    """One step at a time: start a job with its least, or give one GPU more; what adds least."""
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
    """From every size of a job, the larger one that adds least cost per GPU (the lower hull).

    A job at its limit stays there, as does one that may not run.
    """
    from ones.models.allocation_kernels import hull

    return hull(*_typed(table, least, most))


def next_sizes_reference(table: Floats, least: Ints, most: Ints) -> Ints:
    """As `next_sizes`, by trying all of them; of equals the smallest."""
    sizes = np.zeros(table.shape, np.int32)
    for job in range(len(table)):
        for now in (0, *range(least[job], most[job])):
            larger = range(max(now + 1, least[job]), most[job] + 1)
            if larger:
                cost = table[job]
                sizes[job, now] = min(larger, key=lambda c: (cost[c] - cost[now]) / (c - now))
        sizes[job, most[job] :] = most[job]
    return sizes


def total(table: Floats, counts: Ints) -> float:
    return float(table[np.arange(len(table)), counts].sum())


def _sizes(least: int, most: int, gpus: int, *, forced: bool) -> list[int]:
    sizes = list(range(least, min(most, gpus) + 1))
    return sizes if forced else [0, *sizes]


def _typed(table: Floats, least: Ints, most: Ints) -> tuple[Floats, Ints, Ints]:
    return (
        np.ascontiguousarray(table, np.float64),
        np.ascontiguousarray(least, np.int32),
        np.ascontiguousarray(most, np.int32),
    )


def _checked(counts: Ints) -> Ints:
    if not len(counts):
        raise ValueError("the jobs that must run do not fit on the GPUs")
    return counts
