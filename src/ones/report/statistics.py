"""Statistical comparison of two schedulers: paired tests, effect sizes, intervals.

Pairs are the same job of the same seed under two schedulers. Jobs of one seed share a queue and are
not independent, so intervals come from resampling whole seeds if there are several, else jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEVEL = 0.95
DRAWS = 1000
#: the exact distribution is used with fewer pairs, if there are no ties
EXACT_BELOW = 20


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTest:
    """Wilcoxon signed-rank test of first against second, over pairs."""

    n: int  # pairs
    ties: int  # pairs without a difference: not ranked
    p_two_sided: float  # small: they differ
    p_less: float  # small: the first is smaller
    p_greater: float  # small: the first is larger; what the paper prints as "negative test"
    effect: float  # rank-biserial: -1 the first is smaller in every pair, 1 larger in every one
    effect_interval: Interval


def mean_interval(values: Sequence[float], *, seed: int = 0) -> Interval:
    """Bootstrap interval of the mean of independent values (one for each seed).

    Widened by the root of n/(n-1): resampling n values understates their spread by that much.
    """
    sample = np.asarray(values, float)
    n = len(sample)
    means = sample[_rng(seed).integers(0, n, (DRAWS, n))].mean(axis=1)
    widening = np.sqrt(n / (n - 1)) if n > 1 else 1.0
    found = _interval(sample.mean() + widening * (means - sample.mean()))
    return Interval(max(found.low, 0.0), found.high) if sample.min() >= 0 else found


def signed_rank_test(
    first: Sequence[float],
    second: Sequence[float],
    groups: Sequence[object] | None = None,
    *,
    seed: int = 0,
) -> PairedTest:
    """`groups` names the seed of each pair.

    >>> signed_rank_test([1, 2, 3, 4, 5], [2, 4, 6, 8, 10]).p_less
    0.03125
    """
    one, other = _pairs(first, second)
    different = (one - other)[one != other]
    p_two_sided, p_less, p_greater = _p_values(different)
    spread = _resampled(rank_biserial, one, other, groups, seed)
    return PairedTest(
        n=len(one),
        ties=len(one) - len(different),
        p_two_sided=p_two_sided,
        p_less=p_less,
        p_greater=p_greater,
        effect=rank_biserial(one, other),
        effect_interval=_interval(spread),
    )


def _p_values(differences: Floats) -> tuple[float, float, float]:
    if not len(differences):
        return 1.0, 1.0, 1.0
    from scipy.stats import wilcoxon

    tied = len(np.unique(np.abs(differences))) < len(differences)
    method = "exact" if len(differences) < EXACT_BELOW and not tied else "asymptotic"
    two_sided, less, greater = (
        float(wilcoxon(differences, alternative=side, method=method).pvalue)
        for side in ("two-sided", "less", "greater")
    )
    return two_sided, less, greater


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number (Holm 1979): together they err with the level of one.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def rank_biserial(first: Sequence[float] | Floats, second: Sequence[float] | Floats) -> float:
    """(R+ - R-) / (R+ + R-) over the ranks of the differences first - second.

    >>> rank_biserial([1, 2, 9], [2, 4, 6])
    0.0
    """
    from scipy.stats import rankdata

    one, other = _pairs(first, second)
    differences = (one - other)[one != other]
    if not len(differences):
        return 0.0
    ranks = rankdata(np.abs(differences))
    return float((ranks * np.sign(differences)).sum() / ranks.sum())


def reduction_percent(first: Sequence[float] | Floats, second: Sequence[float] | Floats) -> float:
    """Reduction of the mean from second to first, in per cent of second; nan if that is 0.

    >>> reduction_percent([50.0], [200.0])
    75.0
    """
    below = float(np.mean(second))
    return 100.0 * (1.0 - float(np.mean(first)) / below) if below else nan


def reduction_interval(
    first: Sequence[float],
    second: Sequence[float],
    groups: Sequence[object] | None = None,
    *,
    seed: int = 0,
) -> Interval:
    one, other = _pairs(first, second)
    return _interval(_resampled(reduction_percent, one, other, groups, seed))


def _resampled(
    statistic: Callable[[Floats, Floats], float],
    first: Floats,
    second: Floats,
    groups: Sequence[object] | None,
    seed: int,
) -> Floats:
    members = _members(len(first), groups)
    rng = _rng(seed)
    values = np.empty(DRAWS)
    for i in range(DRAWS):
        drawn = rng.integers(0, len(members), len(members))
        rows = np.concatenate([members[k] for k in drawn])
        values[i] = statistic(first[rows], second[rows])
    return values


def _members(n: int, groups: Sequence[object] | None) -> list[NDArray[np.int64]]:
    """Rows that are drawn together, by group."""
    if groups is not None and len(set(groups)) > 1:
        found: dict[object, list[int]] = {}
        for row, group in enumerate(groups):
            found.setdefault(group, []).append(row)
        return [np.array(rows, np.int64) for rows in found.values()]
    return [np.array([row], np.int64) for row in range(n)]


def _interval(values: Floats) -> Interval:
    known = values[~np.isnan(values)]
    if not len(known):
        return Interval(nan, nan)
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def _pairs(
    first: Sequence[float] | Floats, second: Sequence[float] | Floats
) -> tuple[Floats, Floats]:
    one, other = np.asarray(first, float), np.asarray(second, float)
    if one.shape != other.shape or one.ndim != 1 or not len(one):
        raise ValueError(f"{one.shape} and {other.shape} values are not pairs")
    return one, other


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, 0x57A7])
