"""The jobs and GPUs that a decision may change: the columns and the entries of a genome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from ones.core.cluster import Gpu, NodeState
from ones.core.job import JobId
from ones.core.view import JobView, View
from ones.models.sharing import OwnerQuota
from ones.policies.ones_paper.genome import IDLE, Genomes, Ints


@dataclass(frozen=True, slots=True)
class Pool:
    jobs: list[JobView]  # not being changed, by order of submission
    gpus: list[Gpu]  # free, or held by these jobs, on nodes that are up; in the cluster's order
    staying: dict[JobId, tuple[Gpu, ...]]  # those that each job holds

    @classmethod
    def of(cls, view: View, jobs: list[JobView]) -> Self:
        movable = [job for job in jobs if not job.pinned]
        staying = {job.id: _usable_gpus(view, job) for job in movable}
        pool = {*view.free, *(gpu for gpus in staying.values() for gpu in gpus)}
        nodes = view.cluster.nodes
        rank = {
            node.id: {index: i for i, index in enumerate(node.order)} for node in nodes.values()
        }
        gpus = sorted(pool, key=lambda gpu: (nodes[gpu.node].position, rank[gpu.node][gpu.index]))
        return cls(movable, gpus, staying)

    @property
    def keys(self) -> list[int]:
        return [job.number for job in self.jobs]

    def present(self) -> Genomes:
        """The schedule in force as a genome."""
        column = {gpu: i for i, gpu in enumerate(self.gpus)}
        row = np.full((1, len(self.gpus)), IDLE, np.int32)
        for i, job in enumerate(self.jobs):
            for gpu in self.staying[job.id]:
                row[0, column[gpu]] = i
        return row

    def sizes(self, view: View, row: Ints) -> dict[JobId, int]:
        """GPUs of each job in a genome, in the order of occurrence, within the limits of owners."""
        jobs, first, n = np.unique(row[row != IDLE], return_index=True, return_counts=True)
        quota = OwnerQuota(view, self.jobs)
        found: dict[JobId, int] = {}
        for i in np.argsort(first).tolist():
            job = self.jobs[int(jobs[i])]
            for size in (int(n[i]), job.job.min_gpus):
                if quota.take(job.job.owner, size):
                    found[job.id] = size
                    break
        return found


def _usable_gpus(view: View, job: JobView) -> tuple[Gpu, ...]:
    """Held GPUs on nodes that are up; none if they are too few: the job moves as a whole."""
    held = job.wanted.gpus if job.wanted else ()
    up = tuple(gpu for gpu in held if view.cluster.state_of(gpu) is NodeState.UP)
    return up if len(up) >= job.job.min_gpus else ()
