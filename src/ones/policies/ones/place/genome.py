"""A population as arrays: every candidate is a row of runs (job, GPUs), in the order of GPUs.

All operators write the workers of a job side by side, in the order in which jobs first occur; this
is the paper's *reorder*. Idle GPUs are the last ones of a row. Runs instead of single GPUs make a
generation three times as fast on large clusters.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ones.policies.ones.score.problem import Ints, Keys


class Rows(NamedTuple):
    jobs: Ints  # [row, run]: index of the job
    counts: Ints  # [row, run]: its GPUs
    length: Ints  # [row]: number of valid runs


def allocate_rows(rows: int, runs: int) -> Rows:
    return Rows(
        np.zeros((rows, runs), np.int32),
        np.zeros((rows, runs), np.int32),
        np.zeros(rows, np.int32),
    )


def write(rows: Rows, at: int, counts: Ints) -> None:
    """Writes a row from the GPUs of each job, in the order of jobs."""
    running = np.flatnonzero(counts)
    rows.length[at] = len(running)
    rows.jobs[at, : len(running)] = running
    rows.counts[at, : len(running)] = counts[running]


def counts_of(rows: Rows, at: int, jobs: int) -> Ints:
    """Returns the GPUs of each job in one row."""
    counts = np.zeros(jobs, np.int32)
    runs = rows.length[at]
    counts[rows.jobs[at, :runs]] = rows.counts[at, :runs]
    return counts


def copy_rows(rows: Rows, chosen: NDArray[np.int64], into: Rows, at: int = 0) -> None:
    """Copies the chosen rows to consecutive rows of `into`."""
    end, runs = at + len(chosen), min(rows.jobs.shape[1], into.jobs.shape[1])
    into.jobs[at:end, :runs] = rows.jobs[chosen, :runs]
    into.counts[at:end, :runs] = rows.counts[chosen, :runs]
    into.length[at:end] = rows.length[chosen]


def reindex(rows: Rows, before: Keys, now: Keys) -> Rows:
    """Returns the rows with new job indices; runs of ended jobs become idle GPUs.

    The rows have space for all jobs, because they are not repaired yet.
    """
    order = np.argsort(now, kind="stable")
    place = np.minimum(np.searchsorted(now, before, sorter=order), len(now) - 1)
    found = order[place]
    index = np.where(now[found] == before, found, -1)
    jobs = index[rows.jobs]
    kept = (np.arange(jobs.shape[1]) < rows.length[:, None]) & (jobs >= 0)
    at_row = np.nonzero(kept)[0]
    place = (np.cumsum(kept, axis=1) - 1)[kept]  # remaining runs move to the front, in their order
    fresh = allocate_rows(len(jobs), len(now))
    fresh.jobs[at_row, place] = jobs[kept]
    fresh.counts[at_row, place] = rows.counts[kept]
    fresh.length[:] = kept.sum(axis=1)
    return fresh
