"""Medians of few, skewed measurements, with 95 % bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

DRAWS = 4000


class Interval(NamedTuple):
    middle: float
    low: float
    high: float


def median_of(values: Sequence[float]) -> Interval:
    """The median.

    >>> median_of([2.0, 2.0, 2.0])
    Interval(middle=2.0, low=2.0, high=2.0)
    """
    return _interval(float(np.median(values)), _medians(values, 0))


def difference_of(rival: Sequence[float], ours: Sequence[float]) -> Interval:
    """The median of the rival less ours; the two were not measured in pairs.

    >>> difference_of([3.0, 3.0], [1.0, 1.0, 1.0])
    Interval(middle=2.0, low=2.0, high=2.0)
    """
    middle = float(np.median(rival) - np.median(ours))
    return _interval(middle, _medians(rival, 1) - _medians(ours, 2))


def _medians(values: Sequence[float], seed: int) -> NDArray[np.float64]:
    draws = np.random.default_rng(seed).choice(np.asarray(values), (DRAWS, len(values)))
    medians: NDArray[np.float64] = np.median(draws, axis=1)
    return medians


def _interval(middle: float, drawn: NDArray[np.float64]) -> Interval:
    low, high = (float(x) for x in np.quantile(drawn, (0.025, 0.975)))
    return Interval(middle, low, high)
