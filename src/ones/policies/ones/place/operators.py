"""Tables that the operators read: limits, order of admission, fills.

Every candidate that an operator has changed is repaired in three steps:

1. trim: each job is cut to its limit, and dropped if it has less than its minimum; if there are
   fewer GPUs than before, the jobs that have run longest give theirs, first those above their
   minimum;
2. fill: idle GPUs go to waiting jobs and to jobs that can grow;
3. reorder: the workers of a job are side by side, in the order of occurrence.

The fill has two rules. The paper's (0): a waiting job gets its minimum, a running job grows to its
limit R_j, and the job with the least added cost is first (smallest Δφ_j Y_j), waiting jobs before
running ones. The slope rule (1) is ours: each job grows to the size from which further growth pays
less, and the job with the least added cost *per GPU* is first. Each fill draws its rule and its
draw of Y.

`kernels` is compiled; `ones.lab.bench.search.reference` has the same operators in plain Python,
which tests compare with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ones.policies.ones.score.problem import Floats, Ints, Problem

#: probability that a preempted job is left out of the fill that follows
LEFT_OUT = 0.7
#: mutation rate θ: mean number of jobs of a candidate, and the bounds of the rate
MUTATED_JOBS, LEAST_RATE, MOST_RATE = 1.5, 0.02, 0.2
PAPER, SLOPE = 0, 1
#: share of the fills with the slope rule
SLOPE_SHARE = 0.5
#: draws that fills may use, beside the mean
FILL_DRAWS = 4

Seeds = NDArray[np.uint64]


class Tables(NamedTuple):
    """A problem in the form that the kernels read; types are fixed, so that they compile once."""

    gpus: int
    usable: int
    idle_charge: float
    slope_share: float  # of the fills
    left_out: float  # this and the next three are not compiled in
    mutated_jobs: float
    least_rate: float
    most_rate: float
    runnable: int  # jobs that may run: valid entries of every order
    least: Ints
    most: Ints
    by_age: Ints  # jobs, the longest running first
    scores: NDArray[np.float64]  # [job, GPUs, 2]: ranking cost and cost, less if it waits
    draws: Floats  # [job, draw]: work of single draws, as far as selection looks at them
    fill_work: Floats  # [fill, job]: work that a fill goes by
    grown: NDArray[np.int32]  # [rule, job, GPUs]: the size that a job would go to
    growth: NDArray[np.float64]  # [rule, job, GPUs]: what that adds per work
    order: NDArray[np.int32]  # [rule, fill, place]: waiting jobs, the cheapest first
    order_cost: Floats  # [rule, fill, place]: what each adds


def tables(
    problem: Problem,
    *,
    next_sizes: Callable[[Floats, Ints, Ints], Ints],
    slope_share: float = SLOPE_SHARE,
) -> Tables:
    ranking = problem.table(problem.mean_work)
    several = len(problem.work) > 1
    fill_work = np.vstack([problem.mean_work, problem.work[: FILL_DRAWS if several else 0]])
    grown = np.zeros((2, *problem.cost.shape), np.int32)
    grown[PAPER] = problem.most[:, None]
    grown[PAPER, :, 0] = np.minimum(problem.least, problem.most)
    if slope_share > 0:
        grown[SLOPE] = next_sizes(ranking, problem.least, problem.most)
    growth = _growth(problem, grown)
    order, order_cost = _orders(problem, fill_work, growth)
    return Tables(
        problem.gpus,
        problem.usable,
        problem.idle_charge(),
        slope_share,
        LEFT_OUT,
        MUTATED_JOBS,
        LEAST_RATE,
        MOST_RATE,
        int((problem.most > 0).sum()),
        problem.least,
        problem.most,
        np.argsort(-problem.processed, kind="stable").astype(np.int32),
        np.stack([m - m[:, :1] for m in (ranking, problem.cost)], axis=2),
        np.ascontiguousarray(problem.work.T if several else problem.work.T[:, :0]),
        fill_work,
        grown,
        growth,
        order,
        order_cost,
    )


def _growth(problem: Problem, grown: NDArray[np.int32]) -> NDArray[np.float64]:
    """Returns Δφ_j of growing to the next size; in the slope rule per GPU.

    From no GPUs, the paper's rule takes the whole cost: there waiting costs nothing.
    """
    jobs, sizes = np.ogrid[: problem.cost.shape[0], : problem.cost.shape[1]]
    growth = problem.cost[jobs, grown] - problem.cost
    growth[PAPER, :, 0] += problem.cost[:, 0]
    growth[SLOPE] /= np.maximum(grown[SLOPE] - sizes, 1)
    return growth


def _orders(
    problem: Problem, fill_work: Floats, growth: NDArray[np.float64]
) -> tuple[NDArray[np.int32], Floats]:
    """Sorts waiting jobs by added cost, for every rule and draw; excluded jobs are last."""
    added = fill_work * growth[:, None, :, 0]
    added[:, :, problem.most == 0] = np.inf
    order = np.argsort(added, axis=2, kind="stable")
    return order.astype(np.int32), np.take_along_axis(added, order, axis=2)
