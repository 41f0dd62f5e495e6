"""From so many GPUs on each node to the GPUs themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ones.core.cluster import Gpu, NodeId, NodeState
from ones.core.job import JobId
from ones.core.view import JobView, View

Counts = Mapping[NodeId, int]


def counts_of(view: View, job: JobView) -> dict[NodeId, int]:
    """GPUs of a job on each node that is up."""
    counts: dict[NodeId, int] = {}
    for gpu in job.wanted.gpus if job.wanted else ():
        if view.cluster.state_of(gpu) is NodeState.UP:
            counts[gpu.node] = counts.get(gpu.node, 0) + 1
    return counts


def room_without(view: View, movable: Iterable[JobView]) -> dict[NodeId, int]:
    """GPUs of each node that is up, if these jobs were not there."""
    room = {
        node.id: view.free.room(node.id)
        for node in view.cluster.nodes.values()
        if node.state is NodeState.UP
    }
    for job in movable:
        for node, count in counts_of(view, job).items():
            room[node] += count
    return room


def gpus_for(
    view: View, movable: Iterable[JobView], wanted: Mapping[JobId, Counts]
) -> dict[JobId, tuple[Gpu, ...]]:
    """Every job keeps what it has on a node as far as its new count goes; the rest is shared out.

    The counts must fit what `room_without` says. Jobs without any are left out.
    """
    free: dict[NodeId, list[Gpu]] = {}
    chosen: dict[JobId, list[Gpu]] = {job: [] for job, counts in wanted.items() if counts}
    for node in view.cluster.nodes.values():
        if node.state is NodeState.UP:
            free[node.id] = list(view.free.on(node.id))
    for job in movable:
        left = dict(wanted.get(job.id, {}))
        for gpu in job.wanted.gpus if job.wanted else ():
            if view.cluster.state_of(gpu) is not NodeState.UP:
                continue
            if left.get(gpu.node, 0) > 0:
                left[gpu.node] -= 1
                chosen[job.id].append(gpu)
            else:
                free[gpu.node].append(gpu)
    for gpus in free.values():
        gpus.sort(reverse=True)
    for job_id, mine in chosen.items():
        for node_id, count in wanted[job_id].items():
            lacking = count - sum(gpu.node == node_id for gpu in mine)
            mine += [free[node_id].pop() for _ in range(lacking)]
    return {job: tuple(sorted(gpus)) for job, gpus in chosen.items() if gpus}
