"""What the search is asked: what every number of GPUs is worth to every job, and what may be.

A candidate says how many GPUs of every node each job has: a matrix of jobs by nodes.
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
#: chances of a row to be put back, to be leaky, and of an entry of a leaky row to be emptied
RESET, LEAKY, EMPTIED = 0.1, 0.1, 0.1


class Problem(NamedTuple):
    """Jobs come in the order in which they keep what they have, when there is too little."""

    terms: Floats  # (jobs, 2, GPUs + 1): cost with so many GPUs on one node, or on several
    stay: Floats  # (jobs): cost of a job whose row stays as it is
    least: Ints  # a job has none, or at least so many GPUs
    most: Ints
    current: Counts  # (jobs, nodes)
    capacity: Ints  # GPUs of each node
    closed: Flags  # nodes where a job that cannot be moved uses the network
    owner: Ints  # of each job
    room: Ints  # GPUs that each owner may have
    most_nodes: int


def power_terms(speed_ups: Floats, power: float) -> Floats:
    """What each job adds to the cost, such that the least sum has the largest power mean.

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
