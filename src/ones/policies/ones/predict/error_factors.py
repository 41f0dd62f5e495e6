"""Random errors of predictions, to test how much a schedule depends on them.

The predicted remaining work of a job is multiplied by a factor that is drawn once for the job. The
median of the factors is 1; half of them are above `error` or below 1/`error`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import exp, log

import numpy as np
from numpy.typing import NDArray

#: median distance of a normal draw from 0
_MEDIAN_DISTANCE = 0.6744897501960817
_STREAM = 2  # separates these draws from others with the same seed


def error_factors(seed: int, jobs: Iterable[int], error: float) -> NDArray[np.float64]:
    """Returns a factor for each job number; equal arguments give equal factors."""
    return np.array([_factor(seed, job, error) for job in jobs])


@lru_cache(maxsize=1 << 16)
def _factor(seed: int, job: int, error: float) -> float:
    draw = float(np.random.default_rng([seed, job, _STREAM]).standard_normal())
    return exp(log(error) / _MEDIAN_DISTANCE * draw)
