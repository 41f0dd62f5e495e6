"""The compiled half of `flow`."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def marginal(
    order: NDArray[np.int64],
    speedups: NDArray[np.float64],
    sizes: NDArray[np.int64],
    gpus: int,
    behind: float,
) -> NDArray[np.float64]:
    """`flow.marginal_reference`, in place: from the most GPUs down, so that `worth` is the old."""
    worth = np.zeros(gpus + 1)
    weights = np.zeros(len(order))
    for k in range(1, len(order) + 1):
        job = order[k - 1]
        weight = np.inf
        for i in range(len(sizes)):
            if sizes[i] <= gpus:
                weight = min(weight, (k + behind - worth[gpus - sizes[i]]) / speedups[job, i])
        weights[job] = weight
        for u in range(gpus, 0, -1):
            best = worth[u]
            for i in range(len(sizes)):
                if sizes[i] > u:
                    break
                best = max(best, worth[u - sizes[i]] + weight * speedups[job, i])
            worth[u] = best
    return weights
