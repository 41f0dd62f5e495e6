"""Random numbers that depend on their key, not on the order in which they are drawn.

A counter-based generator (splitmix64): the noise in epoch 7 of job 12 is the same under
every policy, so that policies are compared under the same noise.
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
    """A uniform number in (0, 1), determined by the key."""
    state = 0
    for part in key:
        state = _mix(state ^ (part & _MASK))
    return ((state >> 11) + 0.5) / (1 << 53)


def normal(*key: int) -> float:
    """A standard normal number, determined by the key."""
    return _INVERSE(uniform(*key))


#: epochs of a wave
WAVE_EPOCHS = 12.0


def wave(epoch: int, *key: int) -> float:
    """A slow wave between -1 and 1; the key determines where it begins."""
    return math.sin(2 * math.pi * (epoch / WAVE_EPOCHS + uniform(*key)))


def lognormal(sigma: float, *key: int) -> float:
    """A lognormal number with median 1, determined by the key."""
    return math.exp(sigma * normal(*key)) if sigma else 1.0
