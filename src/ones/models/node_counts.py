"""From so many GPUs on each node to the GPUs themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ones.core.cluster import Gpu, NodeId, NodeState
from ones.core.job import JobId
from ones.core.view import JobView, View
from ones.models.grouping import pick

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
    nodes = view.cluster.nodes
    chosen: dict[JobId, list[Gpu]] = {job: [] for job, counts in wanted.items() if counts}
    free = {n.id: list(view.free.on(n.id)) for n in nodes.values() if n.state is NodeState.UP}
    for job in movable:
        there: dict[NodeId, list[Gpu]] = {}
        for gpu in job.wanted.gpus if job.wanted else ():
            if view.cluster.state_of(gpu) is NodeState.UP:
                there.setdefault(gpu.node, []).append(gpu)
        for node, held in there.items():
            kept = pick(held, wanted.get(job.id, {}).get(node, 0), nodes[node].groups)
            if kept:
                chosen[job.id] += kept
            free[node] += [gpu for gpu in held if gpu not in kept]
    for job_id, mine in chosen.items():
        for node, count in wanted[job_id].items():
            beside = [gpu for gpu in mine if gpu.node == node]
            more = pick(free[node], count - len(beside), nodes[node].groups, beside)
            assert len(beside) + len(more) == count, "more was asked for than there is"
            free[node] = [gpu for gpu in free[node] if gpu not in more]
            mine.extend(more)
    return {job: tuple(sorted(gpus)) for job, gpus in chosen.items() if gpus}
