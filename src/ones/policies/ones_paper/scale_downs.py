"""Parts `scale_down` and `sigma`: how long-running jobs lose batch size, against the Convoy Effect.

A rule gives R' at the end of an epoch from R, σ T_processed and the share of the cluster that the
job holds. R' = 2R is Scale-up.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

ScaleDown = Callable[[int, float, float], int]


def printed(limit: int, pressure: float, share: float) -> int:
    """R' = ceil(2R / ceil(σT + 1)). The inner ceiling is at least 2 for T > 0: R never grows."""
    return ceil(2 * limit / ceil(pressure + 1))


def repaired(limit: int, pressure: float, share: float) -> int:
    """Scale-up while σT <= 1, the printed formula for jobs that are longer.

    >>> repaired(64, 0.5, 0.1), repaired(64, 2.5, 0.1)
    (128, 32)
    """
    return 2 * limit if pressure <= 1 else printed(limit, pressure, share)


def never(limit: int, pressure: float, share: float) -> int:
    """Scale-up only."""
    return 2 * limit


def largest(limit: int, pressure: float, share: float) -> int:
    """As repaired, for a job that holds half of the cluster; the others only grow."""
    return repaired(limit, pressure, share) if share >= 0.5 else 2 * limit


SCALE_DOWNS: dict[str, ScaleDown] = {
    "printed": printed,
    "repaired": repaired,
    "never": never,
    "largest": largest,
}

#: σ from the arrival rate λ, the GPUs of the cluster, and the median T_processed of all jobs (0:
#: none has run)
Sigma = Callable[[float, int, float], float]

SIGMAS: dict[str, Sigma] = {
    # as printed: penalises jobs that are longer than the mean gap between arrivals
    "arrivals": lambda rate, gpus, median: rate,
    # the mean gap between arrivals at one GPU: a job alone on its GPU is as long at a load of 1
    "per-gpu": lambda rate, gpus, median: rate / max(gpus, 1),
    "median": lambda rate, gpus, median: 1.0 / median if median > 0 else 0.0,
}
