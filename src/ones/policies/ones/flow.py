"""What a job's speed is worth to everybody: weights of flow time, for any speed-up curve.

The sum of all completion times falls fastest if GPUs go where weight times speed-up is
largest. A job's weight is what the others would gain if it were gone: jobs that will end
soon weigh more, because all those behind them wait for their GPUs.

Two estimates are mixed, since each errs the other way:

* `marginal_weights`, from each job's own speed-up curve: with the k longest jobs left,
  the best division of the GPUs must be worth exactly k. It favours jobs that scale badly.
* `rank_weights`, the closed form for jobs that all speed up as c^p (heSRPT): it knows only
  the order, so that an error of prediction costs little. It favours the middle ones.

Both know of nobody who is yet to come. With jobs arriving at rate Λ, each of which costs all
others and itself C seconds in sum, the best division is worth k + ΛC instead of k (the
Hamilton-Jacobi-Bellman equation of the sum of completion times). Who comes and is shorter than
the k-th longest delays all k: that is a part of k and makes all weights larger alike. Who comes
and is longer is as good as here already, behind it. So weights become more equal among jobs that
are no longer than most, and GPUs are used better, as an equal division does; one that is longer
than all who will come gains nothing by them: they will pass it. `to_come` is how many are on the
way for each job that is here; they are taken to be as long as those.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: speed-up c^p of the closed form; from 0.5 to 0.95 it makes no difference
POWER = 0.8
#: a job's age counts against its own length on an equal share of the GPUs, and so many seconds
AGE_SECONDS = 30.0
#: an age of so many times the usual length of a job is the most that counts
OLDEST = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Leanings:
    """`ageing` lets jobs that have been here for long, for their length, go first; `seniority`,
    those that have been here for long, for the length of all jobs: long ones, which end last.
    The more of it, the better the slowest fare. `to_come`: see above."""

    ageing: float = 0.0
    seniority: float = 0.0
    to_come: float = 0.0


def flow_weights(
    seconds: Floats,
    speedups: Floats,
    sizes: Ints,
    gpus: int,
    *,
    done_seconds: Floats,
    ages: Floats,
    leanings: Leanings,
) -> Floats:
    """[draw, job]. `seconds` [draw, job]: left on one GPU; `speedups` [job, size]: over one GPU.

    `done_seconds` is what each job has done, on one GPU. Its length is what it takes on an equal
    share, so that age counts alike whether it is crowded or not: against a length on one GPU,
    newcomers were kept waiting on small clusters.
    """
    middle = np.median(seconds, axis=0)
    behind = leanings.to_come * longer_than(middle, middle + done_seconds)
    marginal = marginal_weights(middle, speedups, sizes, gpus, behind)
    weights = np.sqrt(marginal / marginal.max() * rank_weights(seconds, behind))
    share = speedups[:, _share(sizes, gpus, len(middle))]
    lengths = (middle + done_seconds) / share + AGE_SECONDS
    among_all = np.minimum(ages / lengths.mean(), OLDEST)
    aged: Floats = weights * (1 + leanings.ageing * ages / lengths + leanings.seniority * among_all)
    return aged


def longer_than(left: Floats, whole: Floats) -> Ints:
    """How many of these whole lengths are longer than what is left of each job.

    >>> longer_than(np.array([5.0, 40.0, 100.0]), np.array([50.0, 50.0, 100.0])).tolist()
    [3, 3, 0]
    """
    longer: Ints = len(whole) - np.searchsorted(np.sort(whole), left, side="right")
    return longer


def rank_weights(seconds: Floats, behind: ArrayLike = 0.0) -> Floats:
    """(k^q - (k-1)^q)^(1/q), the longest job has k = 1 and who is to come and will be `behind`
    each job; the largest of a draw is 1."""
    power = 1.0 / (1.0 - POWER)
    order = _longest_first(seconds)
    k = _places(order, behind)
    most = k.max(axis=-1, keepdims=True)
    shares = k / most  # powers of large numbers lose digits
    by_rank = (shares**power - (shares - 1.0 / most) ** power) ** (1.0 / power)
    weights = np.empty_like(seconds, dtype=np.float64)
    np.put_along_axis(weights, order, by_rank, axis=-1)
    weights /= weights.max(axis=-1, keepdims=True)
    return weights


def _places(order: Ints, behind: ArrayLike) -> Floats:
    """k in this order, from the longest: those who are to come stand between those who are here.

    >>> _places(np.array([1, 0, 2]), [3.0, 0.5, 2.0]).tolist()
    [1.5, 5.0, 6.0]
    """
    jobs = order.shape[-1]
    passed = np.broadcast_to(behind, jobs).astype(np.float64)[order]
    places: Floats = np.arange(1, jobs + 1) + np.maximum.accumulate(passed, axis=-1)
    return places


def marginal_weights(
    seconds: Floats, speedups: Floats, sizes: Ints, gpus: int, behind: ArrayLike = 0.0
) -> Floats:
    """λ_j, by adding jobs from the one that ends last: max Σ λ v = k after the k-th, who is to
    come and will be `behind` it counted.

    Large clusters are counted in coarser units: a weight is no better known than that.
    """
    from ones.policies.ones.flow_kernels import marginal

    sizes, speedups, units = _coarse(sizes, speedups, gpus)
    share = speedups[:, _share(sizes, units, len(seconds))]
    order = _longest_first(seconds / share)
    return marginal(
        order,
        _places(order, behind),
        np.ascontiguousarray(speedups),
        sizes,
        usual_worth(units),
    )


def usual_worth(gpus: int) -> Floats:
    """What 0, 1, ... GPUs are worth, over all of them, to jobs that speed up as c^p."""
    worth: Floats = (np.arange(gpus + 1) / gpus) ** POWER
    return worth


def _longest_first(seconds: Floats) -> Ints:
    """Jobs are in the order in which they came. Of equals the last one comes first here, so that
    the first one weighs most and is served first.

    >>> _longest_first(np.array([5.0, 9.0, 5.0])).tolist()
    [1, 2, 0]
    """
    from_the_last = np.argsort(-seconds[..., ::-1], axis=-1, kind="stable")
    order: Ints = seconds.shape[-1] - 1 - from_the_last
    return order


def _share(sizes: Ints, gpus: int, jobs: int) -> int:
    """The place of the size that each gets where all get the same."""
    equal = max(1, gpus // max(1, jobs))
    return max(0, int(np.searchsorted(sizes, equal, side="right")) - 1)


def marginal_reference(
    order: Ints, places: Floats, speedups: Floats, sizes: Ints, usual: Floats
) -> Floats:
    """As `flow_kernels.marginal`, to be read: worth[u] is the most that u GPUs are worth.

    `places` are k of the jobs in this order. Between two of them stand those who are to come, who
    make GPUs worth more and use them like those before; behind the first, as is `usual`.
    """
    gpus = len(usual) - 1
    worth = (places[0] - 1.0) * usual
    weights = np.zeros(len(order))
    before = 0.0
    for job, k in zip(order, places, strict=True):
        if before:
            worth = worth * ((k - 1.0) / before)
        weight = min(
            (k - worth[gpus - s]) / v
            for s, v in zip(sizes, speedups[job], strict=True)
            if s <= gpus
        )
        weights[job] = weight
        better = worth.copy()
        for s, v in zip(sizes, speedups[job], strict=True):
            if s <= gpus:
                better[s:] = np.maximum(better[s:], worth[: gpus + 1 - s] + weight * v)
        worth, before = better, k
    return weights


#: GPUs, or groups of them, that weights are worked out with at most
MOST_UNITS = 256


def _coarse(sizes: Ints, speedups: Floats, gpus: int) -> tuple[Ints, Floats, int]:
    unit = -(-gpus // MOST_UNITS)
    if unit == 1:
        return sizes, speedups, gpus
    # a size takes the units it needs; of equals the largest size is the best
    units = -(-sizes // unit)
    last = np.append(units[1:] != units[:-1], True)
    return units[last], speedups[:, last], gpus // unit


@cache
def usual_sizes(most: int, per_node: int) -> Ints:
    """Powers of two within a node, then whole nodes, ever coarser: odd sizes break nodes up."""
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
        sizes.append(whole)  # who is alone may have them all
    found = np.array(sizes, np.int64)
    found.flags.writeable = False  # it is kept
    return found
