"""Jobs that share a GPU, and how much they slow each other down.

Only the simulator has it, for policies that declare `slots_per_gpu` (Gandiva's packing). Let u be
the part of a job's step in which its GPU computes. Two jobs on a GPU have the rate

    SHARED / max(1, u1 + u2)        relative to the GPU alone

so packing pays for jobs that leave the GPU idle. If their samples do not fit its memory together,
they take turns: half of SHARED each. The form follows from time sharing of one device; that packing
pays for jobs with low utilisation and costs for others is the finding of Gandiva (OSDI'18, its
section on packing) and of the co-location tables of Gavel (OSDI'20). SHARED is assumed: 5 % for
switching between processes.
"""

from __future__ import annotations

from ones.core.cluster import Cluster, Gpu, NodeId
from ones.core.schedule import Allocation
from ones.sim.sim_job import SimJob

SHARED = 0.95


class GpuSharing:
    """The jobs that train on each GPU of a cluster with several slots of a GPU."""

    def __init__(self, cluster: Cluster) -> None:
        self._devices = {n.id: n.devices for n in cluster.nodes.values() if n.slots > 1}
        self._on: dict[Gpu, dict[SimJob, None]] = {}
        self._where: dict[SimJob, tuple[Gpu, ...]] = {}

    def add_node(self, node: NodeId, gpus: int, slots: int) -> None:
        if slots > 1:
            self._devices[node] = gpus // slots

    def enter(self, job: SimJob, allocation: Allocation) -> None:
        """Registers a job that trains with this allocation."""
        if not self._devices:
            return
        self.leave(job)
        gpus = tuple(
            Gpu(gpu.node, gpu.index % self._devices.get(gpu.node, gpu.index + 1))
            for gpu in allocation.gpus
        )
        self._where[job] = gpus
        for gpu in gpus:
            self._on.setdefault(gpu, {})[job] = None

    def leave(self, job: SimJob) -> list[SimJob]:
        """Removes a job that does not train; returns the jobs that shared a GPU with it."""
        others = self.partners(job)
        for gpu in self._where.pop(job, ()):
            del self._on[gpu][job]
        return others

    def partners(self, job: SimJob) -> list[SimJob]:
        found: dict[SimJob, None] = {}
        for gpu in self._where.get(job, ()):
            found.update(self._on[gpu])
        found.pop(job, None)
        return list(found)

    def slowdown(self, job: SimJob) -> float:
        """Factor on the job's step time: that of its most contended GPU."""
        return max((_slowdown(job, other) for other in self.partners(job)), default=1.0)


def _slowdown(job: SimJob, other: SimJob) -> float:
    if _memory(job) + _memory(other) > 1.0:
        return 2.0 / SHARED
    return max(1.0, _busy(job) + _busy(other)) / SHARED


def _busy(job: SimJob) -> float:
    return 1.0 if job.allocation is None else job.physics.busy_share(job.allocation)


def _memory(job: SimJob) -> float:
    """Part of the memory of a GPU that the job needs; half of it if that is not known."""
    limit = job.physics.max_local_batch
    if limit is None or job.allocation is None:
        return 0.5
    return job.allocation.largest_part / limit
