"""Predictions made worse on purpose, to see how much a schedule rests on them.

What is predicted to remain of a job is multiplied by a factor drawn once for it, with
median 1: half of the jobs are off by more than `error` times, either way.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import exp, log

import numpy as np
from numpy.typing import NDArray

#: of a normal draw, half are further from 0
_MEDIAN_DISTANCE = 0.6744897501960817
_STREAM = 2  # what a random number is for


def error_factors(seed: int, jobs: Iterable[int], error: float) -> NDArray[np.float64]:
    """A factor for each job, by its number: the same whenever it is asked for."""
    return np.array([_factor(seed, job, error) for job in jobs])


@lru_cache(maxsize=1 << 16)
def _factor(seed: int, job: int, error: float) -> float:
    draw = float(np.random.default_rng([seed, job, _STREAM]).standard_normal())
    return exp(log(error) / _MEDIAN_DISTANCE * draw)
