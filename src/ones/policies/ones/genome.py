"""A population as arrays: every candidate is a row of runs, (job, GPUs), in the order of GPUs.

A GPU holds one worker of one job or none; the workers of a job lie side by side, which
is what the paper's *reorder* sees to: all operators write their rows packed, in the
order in which jobs first occur. Runs instead of single GPUs make a generation three
times as quick on large clusters. Idle GPUs are the last ones of a row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ones.policies.ones.problem import Ints, Keys


class Rows(NamedTuple):
    jobs: Ints  # [row, run]: index of the job
    counts: Ints  # [row, run]: its GPUs
    length: Ints  # [row]: runs that count; what lies behind them is stale


def allocate_rows(rows: int, runs: int) -> Rows:
    return Rows(
        np.zeros((rows, runs), np.int32),
        np.zeros((rows, runs), np.int32),
        np.zeros(rows, np.int32),
    )


def write(rows: Rows, at: int, counts: Ints) -> None:
    """A row with so many GPUs for each job, in the order of jobs."""
    running = np.flatnonzero(counts)
    rows.length[at] = len(running)
    rows.jobs[at, : len(running)] = running
    rows.counts[at, : len(running)] = counts[running]


def counts_of(rows: Rows, at: int, jobs: int) -> Ints:
    """GPUs of each job in one row."""
    counts = np.zeros(jobs, np.int32)
    runs = rows.length[at]
    counts[rows.jobs[at, :runs]] = rows.counts[at, :runs]
    return counts


def copy_rows(rows: Rows, chosen: NDArray[np.int64], into: Rows, at: int = 0) -> None:
    """Copy the chosen rows to consecutive ones; both may have room for more than they use."""
    end, runs = at + len(chosen), min(rows.jobs.shape[1], into.jobs.shape[1])
    into.jobs[at:end, :runs] = rows.jobs[chosen, :runs]
    into.counts[at:end, :runs] = rows.counts[chosen, :runs]
    into.length[at:end] = rows.length[chosen]


def reindex(rows: Rows, before: Keys, now: Keys) -> Rows:
    """The same rows when jobs have other indices; runs of jobs that are gone become idle GPUs.

    There is room for all jobs, because the rows are not repaired yet.
    """
    order = np.argsort(now, kind="stable")
    place = np.minimum(np.searchsorted(now, before, sorter=order), len(now) - 1)
    found = order[place]
    index = np.where(now[found] == before, found, -1)
    jobs = index[rows.jobs]
    kept = (np.arange(jobs.shape[1]) < rows.length[:, None]) & (jobs >= 0)
    at_row = np.nonzero(kept)[0]
    place = (np.cumsum(kept, axis=1) - 1)[kept]  # what stays moves to the front, in its order
    fresh = allocate_rows(len(jobs), len(now))
    fresh.jobs[at_row, place] = jobs[kept]
    fresh.counts[at_row, place] = rows.counts[kept]
    fresh.length[:] = kept.sum(axis=1)
    return fresh
