"""Parts `placement`: the GPUs of each job in the deployed candidate.

`occurrence` takes the genome as it is: reorder has packed it. `stay` keeps the GPUs of jobs with
an unchanged number. `least-moves` is the prototype's: contiguous blocks, with the fewest GPUs
that go from one job to another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from ones.core.cluster import Gpu
from ones.core.job import JobId
from ones.core.view import View
from ones.models.packing import GpuPool

Places = dict[JobId, tuple[Gpu, ...]]


class Candidate(NamedTuple):
    """A candidate to be placed."""

    gpus: Sequence[Gpu]  # the GPUs that are shared, in the order of the genome
    order: Mapping[JobId, int]  # GPUs of each running job, in the order of occurrence
    staying: Mapping[JobId, tuple[Gpu, ...]]  # GPUs that each job holds now


Placement = Callable[[View, Candidate], Places]


def occurrence(view: View, candidate: Candidate) -> Places:
    """Workers side by side, in the order in which the jobs occur in the genome."""
    places, at = {}, 0
    for job, size in candidate.order.items():
        places[job] = tuple(candidate.gpus[at : at + size])
        at += size
    return places


def stay(view: View, candidate: Candidate) -> Places:
    """Jobs keep their GPUs as far as they have as many; others get the fewest nodes."""
    return GpuPool(view).arrange(candidate.staying, candidate.order)


def least_moves(view: View, candidate: Candidate) -> Places:
    """Contiguous blocks, gaps allowed, with the fewest GPUs that now belong to another job.

    A heuristic: f(i, k) is the least cost of k jobs on the first i GPUs, with one arrangement kept.
    """
    owner = {gpu: job for job, gpus in candidate.staying.items() for gpu in gpus}
    owners = [owner.get(gpu) for gpu in candidate.gpus]
    jobs = list(candidate.order.items())
    width, n = len(owners), len(jobs)
    taken = [0]  # GPUs held by any job before each position
    for holder in owners:
        taken.append(taken[-1] + (holder is not None))
    own = {job: [0] for job, _ in jobs}
    for job, sums in own.items():
        for holder in owners:
            sums.append(sums[-1] + (holder == job))
    costs = [[inf] * (n + 1) for _ in range(width + 1)]
    paths: list[list[tuple[tuple[int, int], ...]]] = [[()] * (n + 1) for _ in range(width + 1)]
    used = [[0] * (n + 1) for _ in range(width + 1)]  # jobs of a path, as bits
    for i in range(width + 1):
        costs[i][0] = 0.0
        for k in range(1, n + 1):
            if i and costs[i - 1][k] < costs[i][k]:
                costs[i][k], paths[i][k], used[i][k] = (
                    costs[i - 1][k],
                    paths[i - 1][k],
                    used[i - 1][k],
                )
            for index, (job, size) in enumerate(jobs):
                start = i - size
                if start < 0 or costs[start][k - 1] == inf or used[start][k - 1] >> index & 1:
                    continue
                others = taken[i] - taken[start] - (own[job][i] - own[job][start])
                cost = costs[start][k - 1] + others
                if cost < costs[i][k]:
                    costs[i][k] = cost
                    paths[i][k] = (*paths[start][k - 1], (index, start))
                    used[i][k] = used[start][k - 1] | 1 << index
    if costs[width][n] == inf:
        return occurrence(view, candidate)
    return {
        jobs[index][0]: tuple(candidate.gpus[start : start + jobs[index][1]])
        for index, start in paths[width][n]
    }


PLACEMENTS: dict[str, Placement] = {
    "occurrence": occurrence,
    "stay": stay,
    "least-moves": least_moves,
}
