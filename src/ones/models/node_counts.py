"""Converts numbers of GPUs per node to GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ones.core.cluster import Gpu, NodeId, NodeState
from ones.core.job import JobId
from ones.core.view import JobView, View
from ones.models.gpu_groups import pick_gpus

Counts = Mapping[NodeId, int]


def gpus_by_node(view: View, job: JobView) -> dict[NodeId, int]:
    """Number of GPUs of a job on each node that is up."""
    counts: dict[NodeId, int] = {}
    for gpu in job.wanted.gpus if job.wanted else ():
        if view.cluster.state_of(gpu) is NodeState.UP:
            counts[gpu.node] = counts.get(gpu.node, 0) + 1
    return counts


def capacity_without(view: View, movable: Iterable[JobView]) -> dict[NodeId, int]:
    """Free GPUs of each node that is up, if these jobs had none."""
    capacity = {
        node.id: view.free.room(node.id)
        for node in view.cluster.nodes.values()
        if node.state is NodeState.UP
    }
    for job in movable:
        for node, count in gpus_by_node(view, job).items():
            capacity[node] += count
    return capacity


def assign_gpus(
    view: View, movable: Iterable[JobView], wanted: Mapping[JobId, Counts]
) -> dict[JobId, tuple[Gpu, ...]]:
    """The GPUs of each job. Jobs keep their GPUs on a node, up to the new count.

    The counts must fit `capacity_without`. Jobs without GPUs are omitted.
    """
    nodes = view.cluster.nodes
    chosen: dict[JobId, list[Gpu]] = {job: [] for job, counts in wanted.items() if counts}
    free = {n.id: list(view.free.on(n.id)) for n in nodes.values() if n.state is NodeState.UP}
    for job in movable:
        there: dict[NodeId, list[Gpu]] = {}
        for gpu in job.wanted.gpus if job.wanted else ():
            if view.cluster.state_of(gpu) is NodeState.UP:
                there.setdefault(gpu.node, []).append(gpu)
        for node, held in there.items():
            kept = pick_gpus(held, wanted.get(job.id, {}).get(node, 0), nodes[node].groups)
            if kept:
                chosen[job.id] += kept
            free[node] += [gpu for gpu in held if gpu not in kept]
    for job_id, mine in chosen.items():
        for node, count in wanted[job_id].items():
            beside = [gpu for gpu in mine if gpu.node == node]
            more = pick_gpus(free[node], count - len(beside), nodes[node].groups, beside)
            assert len(beside) + len(more) == count, "the counts exceed the capacity"
            free[node] = [gpu for gpu in free[node] if gpu not in more]
            mine.extend(more)
    return {job: tuple(sorted(gpus)) for job, gpus in chosen.items() if gpus}
