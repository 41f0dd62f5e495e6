"""The problem of the genetic search: the cost of every number of GPUs for every job, and limits.

A candidate is a matrix of jobs by nodes: the GPUs of each job on each node.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Counts = NDArray[np.int16]
Flags = NDArray[np.bool_]
Seeds = NDArray[np.uint64]

#: added to every speed-up: a job without GPUs counts, but not infinitely
FLOOR = 1e-3
#: probabilities of a row to be reset, to be leaky, and of an entry of a leaky row to be emptied
RESET, LEAKY, EMPTIED = 0.1, 0.1, 0.1


class AllocationProblem(NamedTuple):
    """Jobs are in the order in which they keep their GPUs, if there are too few."""

    terms: Floats  # (jobs, 2, GPUs + 1): cost by GPUs on one node, or on several
    stay: Floats  # (jobs): cost of a job with an unchanged row
    least: Ints  # minimum GPUs of a job that runs
    most: Ints
    current: Counts  # (jobs, nodes)
    capacity: Ints  # GPUs of each node
    closed: Flags  # nodes where a pinned job uses the network
    owner: Ints  # of each job
    room: Ints  # GPUs that each owner may have
    most_nodes: int


def power_terms(speed_ups: Floats, power: float) -> Floats:
    """The cost of each job, such that the least sum has the largest power mean.

    Fitness is (mean (v + 0.001)^p)^(1/p); with p = 0, the geometric mean.
    """
    if power == 0:
        return -np.log(np.maximum(speed_ups, FLOOR))
    terms: Floats = (speed_ups + FLOOR) ** power
    return terms if power < 0 else -terms


def fitness(cost: float, jobs: int, power: float) -> float:
    """The power mean, from the sum of terms."""
    if power == 0:
        return float(np.exp(-cost / jobs))
    mean = (cost if power < 0 else -cost) / jobs
    return float(mean ** (1 / power))
