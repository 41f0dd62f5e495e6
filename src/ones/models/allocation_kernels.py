"""The loops of `allocation`, compiled. Imported where used only: importing numba is slow."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def divide(
    table: NDArray[np.float64],
    least: NDArray[np.int32],
    most: NDArray[np.int32],
    gpus: int,
    must_run: NDArray[np.bool_],
    use_all: bool,
) -> NDArray[np.int32]:
    """The best division; an empty array if there is none."""
    jobs = len(table)
    cheapest = np.full(gpus + 1, np.inf)
    before = np.full(gpus + 1, np.inf)
    cheapest[0] = 0.0
    # half of what 32 bits would take: 200 MB with 10,000 jobs on 10,240 GPUs
    choices = np.zeros((jobs, gpus + 1), np.int16)
    reached = 0  # GPUs that the jobs so far can use
    for job in range(jobs):
        for used in range(reached + 1):
            before[used] = cheapest[used]
            cheapest[used] = np.inf if must_run[job] else before[used] + table[job, 0]
        largest = min(most[job], gpus)
        for c in range(least[job], largest + 1):
            cost = table[job, c]
            for used in range(min(reached, gpus - c) + 1):
                with_c = before[used] + cost
                if with_c < cheapest[used + c]:
                    cheapest[used + c] = with_c
                    choices[job, used + c] = c
        reached = min(gpus, reached + max(largest, 0))
    used = -1
    for u in range(gpus + 1):
        if cheapest[u] < np.inf and (use_all or used < 0 or cheapest[u] < cheapest[used]):
            used = u
    if used < 0:
        return np.zeros(0, np.int32)
    counts = np.zeros(jobs, np.int32)
    for job in range(jobs - 1, -1, -1):
        counts[job] = choices[job, used]
        used -= counts[job]
    return counts


@njit(cache=True, nogil=True)
def hull(
    table: NDArray[np.float64], least: NDArray[np.int32], most: NDArray[np.int32]
) -> NDArray[np.int32]:
    """The successor of every size on the lower hull of the sizes from there on."""
    jobs, width = table.shape
    sizes = np.zeros((jobs, width), np.int32)
    for job in range(jobs):
        last = most[job]
        for c in range(last, width):
            sizes[job, c] = last
        if last == 0:
            continue
        cost = table[job]
        for step in range(last - least[job] + 1):
            now = last - 1 - step
            if now < least[job]:
                now = 0  # below the least there is only none
            to = last if step == 0 else (now + 1 if now > 0 else least[job])
            # walk along the hull while the next corner is strictly cheaper per GPU
            while to < last:
                after = sizes[job, to]
                here = (cost[to] - cost[now]) / (to - now)
                if here <= (cost[after] - cost[now]) / (after - now):
                    break
                to = after
            sizes[job, now] = to
    return sizes
