"""The operators of the evolution, on genomes of one entry for each GPU.

Refresh has three steps: (1) clean up is `genome.carry_over`, (2) `scale_down` and (3) `admit_new`;
the fill of idle GPUs is in `fills.py`. The captions of the paper's figures are tests.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ones.policies.ones_paper.genome import IDLE, Flags, Floats, Genomes, Ints


@njit(cache=True)
def scale_down(genomes: Genomes, least: Ints, most: Ints) -> None:
    """Refresh (2): a job keeps its first `most` GPUs; below `least` it loses all.

    `most` is floor(R_j c_j / B_j), so the job loses c_j - floor(R_j c_j / B_j) GPUs if R_j < B_j.
    """
    held = np.zeros(len(most), np.int32)
    for row in range(len(genomes)):
        held[:] = 0
        for gpu in range(genomes.shape[1]):
            job = genomes[row, gpu]
            if job >= 0:
                if held[job] < most[job]:
                    held[job] += 1
                else:
                    genomes[row, gpu] = IDLE
        for gpu in range(genomes.shape[1]):
            job = genomes[row, gpu]
            if job >= 0 and held[job] < least[job]:
                genomes[row, gpu] = IDLE


@njit(cache=True)
def admit_new(genomes: Genomes, least: Ints, first: Ints, processed: Floats) -> None:
    """Refresh (3): every new job gets GPUs, if necessary from jobs with the largest T_processed.

    Jobs give what they can spare first, the longest-running one before the others; then the
    longest-running ones are preempted.
    """
    by_age = np.argsort(-processed, kind="mergesort")
    must_run = np.zeros(len(least), np.bool_)
    must_run[first] = True
    for row in range(len(genomes)):
        held, idle = tally(genomes[row], len(least))
        lacking = 0
        for job in first:
            if held[job] == 0:
                lacking += least[job]
        for kept in (least, np.zeros_like(least)):
            for job in by_age:
                given = min(held[job] - kept[job], lacking - idle)
                if given > 0 and not must_run[job]:
                    # a job that cannot keep its least gives all
                    given = given if held[job] - given >= least[job] else held[job]
                    _release(genomes[row], job, given)
                    held[job] -= given
                    idle += given
        for job in first:
            if held[job] == 0 and least[job] <= idle:
                place(genomes[row], job, least[job])
                idle -= least[job]


@njit(cache=True)
def tally(row: Ints, jobs: int) -> tuple[Ints, int]:
    """c_j of each job in a candidate, and its number of idle GPUs."""
    held = np.zeros(jobs, np.int32)
    idle = 0
    for job in row:
        if job >= 0:
            held[job] += 1
        else:
            idle += 1
    return held, idle


@njit(cache=True)
def _release(row: Ints, job: int, gpus: int) -> None:
    """The last `gpus` GPUs of a job become idle."""
    for gpu in range(len(row) - 1, -1, -1):
        if gpus > 0 and row[gpu] == job:
            row[gpu] = IDLE
            gpus -= 1


@njit(cache=True)
def place(row: Ints, job: int, gpus: int) -> None:
    """The first `gpus` idle GPUs go to a job."""
    for gpu in range(len(row)):
        if gpus > 0 and row[gpu] == IDLE:
            row[gpu] = job
            gpus -= 1


def crossover(genomes: Genomes, pairs: NDArray[np.int64], coins: Flags) -> Genomes:
    """Uniform crossover: on each GPU a random child inherits from the first parent, the other child
    from the second parent. Returns two children of each pair."""
    first, second = genomes[pairs[:, 0]], genomes[pairs[:, 1]]
    return np.concatenate([np.where(coins, first, second), np.where(coins, second, first)])


def mutate(genomes: Genomes, preempted: Flags) -> Genomes:
    """Uniform mutation: the GPUs of the `preempted` jobs [candidate, job] become idle."""
    rows = np.arange(len(genomes))[:, None]
    gone = np.hstack([preempted, np.zeros((len(genomes), 1), np.bool_)])  # IDLE is the last column
    return np.where(gone[rows, genomes], np.int32(IDLE), genomes)


@njit(cache=True)
def reorder(genomes: Genomes, jobs: int) -> None:
    """Reorder: the workers of a job side by side, jobs in the order of their first occurrence."""
    held = np.zeros(jobs, np.int32)
    order = np.zeros(jobs, np.int32)
    for row in range(len(genomes)):
        held[:] = 0
        n = 0
        for gpu in range(genomes.shape[1]):
            job = genomes[row, gpu]
            if job >= 0:
                if held[job] == 0:
                    order[n] = job
                    n += 1
                held[job] += 1
        at = 0
        for i in range(n):
            for _ in range(held[order[i]]):
                genomes[row, at] = order[i]
                at += 1
        genomes[row, at:] = IDLE
