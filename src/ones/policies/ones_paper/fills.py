"""Parts `fill`: which jobs get the idle GPUs of a candidate (end of refresh, crossover, mutation).

The paper selects jobs by probability sampling from {Δφ_j Y_j}. φ_j is not defined; the only
quantity with fitting units is c_j / X_j, GPU-seconds per sample. `draws` says which draw of Y_j
each candidate goes by, so that fills differ as the samples of Algorithm 1 do.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ones.policies.ones_paper.genome import Flags, Floats, Genomes, Ints
from ones.policies.ones_paper.operators import place, tally
from ones.policies.ones_paper.problem import Problem

Draws = NDArray[np.int64]
#: fills the idle GPUs of genomes; barred jobs [candidate, job] get some only if no other job can
Fill = Callable[[Genomes, Flags, Draws, Problem], None]


def waiting_first(genomes: Genomes, barred: Flags, draws: Draws, problem: Problem) -> None:
    """Waiting jobs by least GPU-seconds, then growth by least Δφ_j Y_j."""
    _by_gain(genomes, barred, draws, problem.least, problem.most, problem.cost, problem.work, True)


def gain(genomes: Genomes, barred: Flags, draws: Draws, problem: Problem) -> None:
    """As printed: the least Δφ_j Y_j first. A waiting job adds its whole cost, so growth wins."""
    _by_gain(genomes, barred, draws, problem.least, problem.most, problem.cost, problem.work, False)


def length(genomes: Genomes, barred: Flags, draws: Draws, problem: Problem) -> None:
    """The prototype's three stages: new jobs, then all by remaining one-GPU seconds, twice."""
    _by_length(
        genomes, problem.least, problem.most, problem.later, problem.new,
        problem.work[0] * problem.cost[:, 1],
    )  # fmt: skip


FILLS: dict[str, Fill] = {"waiting-first": waiting_first, "gain": gain, "length": length}


@njit(cache=True)
def _by_gain(
    genomes: Genomes,
    barred: Flags,
    draws: Draws,
    least: Ints,
    most: Ints,
    cost: Floats,
    work: Floats,
    waiting_first: bool,
) -> None:
    jobs = len(least)
    keys = np.zeros(jobs)
    stages = np.zeros(jobs, np.int64)
    for row in range(len(genomes)):
        held, idle = tally(genomes[row], jobs)
        if idle == 0:
            continue
        left = work[draws[row]]
        for job in range(jobs):
            # from c_j to floor(R_j c_j / B_j) GPUs: Δφ_j Y_j; from no GPU it is the whole cost
            c, to = held[job], most[job]
            keys[job] = left[job] * (cost[job, to] - cost[job, c])
            if c > 0:
                # equal gains, as of rates that are proportional to GPUs: the least T_j c_j first
                keys[job] += 1e-9 * left[job] * cost[job, c]
            stages[job] = 2 * barred[row, job] + (waiting_first and c > 0)
        order = np.argsort(keys, kind="mergesort")
        for stage in range(4):
            for job in order:
                given = min(most[job] - held[job], idle)
                if stages[job] == stage and given > 0 and held[job] + given >= least[job]:
                    place(genomes[row], job, given)
                    idle -= given
            if idle == 0:
                break


@njit(cache=True)
def _by_length(
    genomes: Genomes, least: Ints, most: Ints, later: Ints, new: Flags, seconds: Floats
) -> None:
    jobs = len(least)
    order = np.argsort(seconds, kind="mergesort")
    for row in range(len(genomes)):
        held, idle = tally(genomes[row], jobs)
        for job in range(jobs):  # (a) new jobs, by order of submission
            if new[job] and held[job] == 0 and later[job] > 0 and least[job] <= idle:
                place(genomes[row], job, least[job])
                held[job] = least[job]
                idle -= least[job]
        for limit in (most, later):  # (b) up to Q_j, (c) up to M_j
            for job in order:
                given = min(min(limit[job], later[job]) - held[job], idle)
                if given > 0 and not new[job] and held[job] + given >= least[job]:
                    place(genomes[row], job, given)
                    held[job] += given
                    idle -= given
