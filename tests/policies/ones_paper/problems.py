"""Small search problems for tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ones.policies.ones_paper.genome import Floats, Genomes
from ones.policies.ones_paper.problem import Problem, first_jobs, idle_charge


def problem(
    gpus: int,
    most: Sequence[int],
    *,
    least: Sequence[int] | None = None,
    later: Sequence[int] | None = None,
    new: Sequence[bool] | None = None,
    processed: Sequence[float] | None = None,
    cost: Floats | None = None,
    work: Sequence[float] | None = None,
    charged: bool = True,
) -> Problem:
    """Jobs with these limits; without `cost`, a GPU-second per sample whatever the size."""
    jobs = len(most)
    limits = np.array(most, np.int32)
    beyond = limits if later is None else np.array(later, np.int32)
    needs = np.array(least or [1] * jobs, np.int32)
    fresh = np.array(new or [False] * jobs, np.bool_)
    if cost is None:
        cost = np.ones((jobs, max(gpus, int(beyond.max())) + 1))
        cost[:, 0] = 0.0
    left = np.array([work or [1.0] * jobs])
    return Problem(
        gpus=gpus,
        least=needs,
        most=limits,
        later=beyond,
        first=first_jobs(fresh, needs, limits, gpus),
        new=fresh,
        processed=np.array(processed or [0.0] * jobs),
        cost=cost,
        work=left,
        idle_charge=idle_charge(cost, left) if charged else 0.0,
    )


def genomes(*rows: Sequence[int]) -> Genomes:
    return np.array(rows, np.int32)
