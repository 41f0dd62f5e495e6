"""Random numbers that depend on what they are for, not on when they are drawn.

A counter-based generator (splitmix64): the noise in epoch 7 of job 12 is the same under
every policy, so that two policies are compared on the same luck.
"""

from __future__ import annotations

import math
from statistics import NormalDist

_MASK = (1 << 64) - 1
_INVERSE = NormalDist().inv_cdf


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def uniform(*key: int) -> float:
    """In (0, 1), for these numbers and no others."""
    state = 0
    for part in key:
        state = _mix(state ^ (part & _MASK))
    return ((state >> 11) + 0.5) / (1 << 53)


def normal(*key: int) -> float:
    return _INVERSE(uniform(*key))


def lognormal(sigma: float, *key: int) -> float:
    """With median 1."""
    return math.exp(sigma * normal(*key)) if sigma else 1.0
