"""Candidate schedules in the form of the paper: one entry for each GPU (Eq. 1, Eq. 4).

An entry is the index of the job that uses the GPU, or IDLE. So no GPU has two workers,
whatever an operator does. The batch of each job follows from its number of GPUs (`limits.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

Genomes = NDArray[np.int32]  # [candidate, GPU]
Counts = NDArray[np.int64]  # [candidate, job]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Ints = NDArray[np.int32]

IDLE = -1


def counts(genomes: Genomes, jobs: int) -> Counts:
    """c_j of every candidate (Eq. 2).

    >>> counts(np.array([[0, 2, 2, IDLE]], np.int32), 3).tolist()
    [[1, 0, 2]]
    """
    rows = len(genomes)
    cells = genomes + 1 + (jobs + 1) * np.arange(rows)[:, None]
    found = np.bincount(cells.ravel(), minlength=rows * (jobs + 1))
    return found.reshape(rows, jobs + 1)[:, 1:]


def carry_over(
    genomes: Genomes,
    jobs: tuple[Sequence[Hashable], Sequence[Hashable]],
    gpus: tuple[Sequence[Hashable], Sequence[Hashable]],
) -> Genomes:
    """The genomes for other jobs and GPUs, each given as (before, now): refresh (1), clean up.

    The GPUs of jobs that have ended, and GPUs that were not there before, are idle.

    >>> before = np.array([[0, 1, 1]], np.int32)
    >>> carry_over(before, (["a", "b"], ["b", "c"]), ([0, 1, 2], [1, 2, 3])).tolist()
    [[0, 0, -1]]
    """
    if jobs[0] != jobs[1]:
        index = {job: i for i, job in enumerate(jobs[1])}
        renamed = np.array([*(index.get(job, IDLE) for job in jobs[0]), IDLE], np.int32)
        genomes = renamed[genomes]  # IDLE is -1, the last entry
    if gpus[0] == gpus[1]:
        return genomes
    column = {gpu: i for i, gpu in enumerate(gpus[0])}
    places = np.array([column.get(gpu, len(column)) for gpu in gpus[1]], np.int64)
    idle = np.full((len(genomes), 1), IDLE, np.int32)
    return np.hstack([genomes, idle])[:, places]
