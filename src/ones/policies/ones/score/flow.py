"""Weights of jobs in the sum of completion times, for any speed-up curve.

The sum of completion times falls fastest if GPUs go where weight x speed-up is largest. The
weight of a job is what all other jobs would gain if it were done: short jobs weigh more, because
the jobs behind them wait for their GPUs.

The weight is the geometric mean of two estimates that err in opposite directions:

* `marginal_weights` uses the speed-up curve of each job: with the k longest jobs left, the best
  division of the GPUs must be worth exactly k. It favours jobs that scale badly.
* `rank_weights` is the closed form for jobs that all speed up as c^p (heSRPT). It uses only the
  order of jobs, so that a wrong prediction costs little. It favours jobs of middle length.

Jobs that are still to arrive delay the jobs that are longer than they are. So the rank k of a job
counts EXPECTED_ARRIVALS future jobs for each present job that is longer than what is left of it.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: speed-up c^p of the closed form; from 0.5 to 0.95 it makes no difference
POWER = 0.8
#: future jobs for each present job
EXPECTED_ARRIVALS = 0.5
#: added to the length of every job to which its age is compared
AGE_SECONDS = 30.0
#: largest age that counts, as a multiple of the mean length of jobs
OLDEST = 2.0
#: GPUs, or groups of GPUs, for which weights are computed
MOST_UNITS = 256


def flow_weights(
    seconds: Floats,
    speedups: Floats,
    sizes: Ints,
    gpus: int,
    *,
    done_seconds: Floats,
    ages: Floats,
    ageing: float,
) -> Floats:
    """[draw, job]. `seconds` [draw, job]: remaining time on one GPU; `speedups` [job, size]:
    relative to one GPU; `done_seconds`: finished work of each job, in seconds on one GPU.

    `ageing` is the weight of a job's age, relative to its own length and to the mean length of
    all jobs; without it the longest jobs wait for most of a busy day. A length is the time on an
    equal share of the GPUs, so that ages count alike on small and on large clusters.
    """
    middle = np.median(seconds, axis=0)
    whole = middle + done_seconds
    arrivals = EXPECTED_ARRIVALS * longer_than(middle, whole)
    marginal = marginal_weights(middle, speedups, sizes, gpus, arrivals)
    weights = np.sqrt(marginal / marginal.max() * rank_weights(seconds, arrivals))
    lengths = whole / speedups[:, _share(sizes, gpus, len(middle))] + AGE_SECONDS
    among_all = np.minimum(ages / lengths.mean(), OLDEST)
    aged: Floats = weights * (1 + ageing * (ages / lengths + among_all))
    return aged


def longer_than(left: Floats, whole: Floats) -> Ints:
    """For each job, the number of whole lengths that exceed its remaining time.

    >>> longer_than(np.array([5.0, 40.0, 100.0]), np.array([50.0, 50.0, 100.0])).tolist()
    [3, 3, 0]
    """
    longer: Ints = len(whole) - np.searchsorted(np.sort(whole), left, side="right")
    return longer


def rank_weights(seconds: Floats, arrivals: ArrayLike = 0.0) -> Floats:
    """(k^q - (k-1)^q)^(1/q), where the longest job has k = 1; the largest of a draw is 1."""
    power = 1.0 / (1.0 - POWER)
    order = _longest_first(seconds)
    k = _ranks(order, arrivals)
    most = k.max(axis=-1, keepdims=True)
    shares = k / most  # powers of large numbers lose digits
    by_rank = (shares**power - (shares - 1.0 / most) ** power) ** (1.0 / power)
    weights = np.empty_like(seconds, dtype=np.float64)
    np.put_along_axis(weights, order, by_rank, axis=-1)
    weights /= weights.max(axis=-1, keepdims=True)
    return weights


def marginal_weights(
    seconds: Floats, speedups: Floats, sizes: Ints, gpus: int, arrivals: ArrayLike = 0.0
) -> Floats:
    """λ_j, by adding jobs from the one that ends last: max Σ λ v = k after the k-th job.

    Large clusters are counted in coarser units: weights are not known more exactly than that.
    """
    from ones.policies.ones.score.flow_kernels import marginal

    sizes, speedups, units = _coarse(sizes, speedups, gpus)
    order = _longest_first(seconds / speedups[:, _share(sizes, units, len(seconds))])
    ranks = _ranks(order, arrivals)
    return marginal(order, ranks, np.ascontiguousarray(speedups), sizes, usual_worth(units))


def usual_worth(gpus: int) -> Floats:
    """The value of 0, 1, ... GPUs to jobs that speed up as c^p, relative to that of all GPUs."""
    worth: Floats = (np.arange(gpus + 1) / gpus) ** POWER
    return worth


def _ranks(order: Ints, arrivals: ArrayLike) -> Floats:
    """k of the jobs in this order, from the longest, with the future jobs that rank before them.

    >>> _ranks(np.array([1, 0, 2]), [3.0, 0.5, 2.0]).tolist()
    [1.5, 5.0, 6.0]
    """
    jobs = order.shape[-1]
    longer = np.broadcast_to(arrivals, jobs).astype(np.float64)[order]
    ranks: Floats = np.arange(1, jobs + 1) + np.maximum.accumulate(longer, axis=-1)
    return ranks


def _longest_first(seconds: Floats) -> Ints:
    """Jobs are in the order of submission. Of equal jobs the last comes first here, so that the
    first weighs most and is served first.

    >>> _longest_first(np.array([5.0, 9.0, 5.0])).tolist()
    [1, 2, 0]
    """
    from_the_last = np.argsort(-seconds[..., ::-1], axis=-1, kind="stable")
    order: Ints = seconds.shape[-1] - 1 - from_the_last
    return order


def _share(sizes: Ints, gpus: int, jobs: int) -> int:
    """The index of the size of an equal share."""
    equal = max(1, gpus // max(1, jobs))
    return max(0, int(np.searchsorted(sizes, equal, side="right")) - 1)


def _coarse(sizes: Ints, speedups: Floats, gpus: int) -> tuple[Ints, Floats, int]:
    unit = -(-gpus // MOST_UNITS)
    if unit == 1:
        return sizes, speedups, gpus
    # a size takes the units that it needs; of sizes with equal units the largest is the best
    units = -(-sizes // unit)
    last = np.append(units[1:] != units[:-1], True)
    return units[last], speedups[:, last], gpus // unit


@cache
def usual_sizes(most: int, per_node: int) -> Ints:
    """Numbers of GPUs that jobs may have: powers of two within a node, then whole nodes in growing
    steps. Other sizes would fragment nodes."""
    sizes = [1]
    while sizes[-1] * 2 <= min(per_node, most):
        sizes.append(sizes[-1] * 2)
    if sizes[-1] < per_node <= most:
        sizes.append(per_node)
    nodes = 2
    while nodes * per_node <= most:
        sizes.append(nodes * per_node)
        nodes += max(1, nodes // 4)
    whole = most // per_node * per_node
    if sizes[-1] < whole:
        sizes.append(whole)  # a job that is alone may have them all
    found = np.array(sizes, np.int64)
    found.flags.writeable = False  # the cache returns the same array
    return found
