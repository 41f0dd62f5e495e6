"""Jobs that share the network card of a node: multi-node jobs slow each other down there."""

from __future__ import annotations

from ones.core.cluster import NodeId
from ones.core.schedule import Allocation
from ones.sim.sim_job import SimJob


class Network:
    """The multi-node jobs that train on each node. Jobs inside one node do not use its card."""

    def __init__(self) -> None:
        self._on: dict[NodeId, dict[SimJob, None]] = {}  # in order of arrival
        self._where: dict[SimJob, tuple[NodeId, ...]] = {}

    def enter(self, job: SimJob, allocation: Allocation) -> int:
        """Registers a job that trains with this allocation; returns `sharing`."""
        self.leave(job)
        nodes = tuple(sorted({w.gpu.node for w in allocation.workers}))
        if len(nodes) > 1:
            self._where[job] = nodes
            for node in nodes:
                self._on.setdefault(node, {})[job] = None
        return self.sharing(job)

    def leave(self, job: SimJob) -> list[SimJob]:
        """Removes a job that does not train; returns the jobs that shared a card with it."""
        neighbours = self.neighbours(job)
        for node in self._where.pop(job, ()):
            del self._on[node][job]
        return neighbours

    def sharing(self, job: SimJob) -> int:
        """Number of jobs on the busiest card of this job, itself included."""
        return max((len(self._on[node]) for node in self._where.get(job, ())), default=1)

    def neighbours(self, job: SimJob) -> list[SimJob]:
        found: dict[SimJob, None] = {}
        for node in self._where.get(job, ()):
            found.update(self._on[node])
        found.pop(job, None)
        return list(found)
