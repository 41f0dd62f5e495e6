"""The compiled half of `flow`."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def marginal(
    order: NDArray[np.int64],
    ranks: NDArray[np.float64],
    speedups: NDArray[np.float64],
    sizes: NDArray[np.int64],
    usual: NDArray[np.float64],
) -> NDArray[np.float64]:
    """λ of each job; `ranks` are k of the jobs in this order.

    worth[u] is the largest value of u GPUs. Future jobs rank between two present jobs; they are
    worth as much as the jobs before them, or as `usual` before the first. `worth` is updated from
    the most GPUs down, so that `worth[u - size]` is still the value before this job.
    """
    gpus = len(usual) - 1
    worth = (ranks[0] - 1.0) * usual
    weights = np.zeros(len(order))
    before = 0.0
    for at in range(len(order)):
        job, k = order[at], ranks[at]
        if before:
            worth *= (k - 1.0) / before
        before = k
        weight = np.inf
        for i in range(len(sizes)):
            if sizes[i] <= gpus:
                weight = min(weight, (k - worth[gpus - sizes[i]]) / speedups[job, i])
        weights[job] = weight
        for u in range(gpus, 0, -1):
            best = worth[u]
            for i in range(len(sizes)):
                if sizes[i] > u:
                    break
                best = max(best, worth[u - sizes[i]] + weight * speedups[job, i])
            worth[u] = best
    return weights
