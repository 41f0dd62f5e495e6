"""Two ways to choose the GPUs of all jobs; `placement_score` compares the results.

`keep_places`: a job with an unchanged number of GPUs keeps them; other jobs are placed on the
fewest nodes, the largest first. `repack`: all jobs are placed on whole nodes, and keep their GPUs
where possible.
"""

from __future__ import annotations

from collections.abc import Mapping

from ones.core.cluster import Gpu, NodeId, NodeState
from ones.core.job import JobId
from ones.core.view import View
from ones.models.gpu_groups import pick_gpus
from ones.models.packing import GpuPool

Places = dict[JobId, tuple[Gpu, ...]]
#: nodes of the largest cluster that is repacked: the time grows as jobs x nodes
MOST_NODES = 256


def keep_places(
    view: View, held_gpus: Mapping[JobId, tuple[Gpu, ...]], sizes: Mapping[JobId, int]
) -> Places:
    """Places jobs and moves only jobs of a changed size. The sizes must fit the free and the held
    GPUs together."""
    room = GpuPool(view)
    places: Places = {}
    changing: list[JobId] = []
    for job, held in held_gpus.items():
        size = sizes.get(job, 0)
        if size and size == len(held):
            places[job] = held
            continue
        room.release(held)
        if size:
            changing.append(job)
    for job in sorted(changing, key=lambda job: -sizes[job]):
        places[job] = _on_few_nodes(room, held_gpus[job], sizes[job])
    return places


def _on_few_nodes(room: GpuPool, held: tuple[Gpu, ...], size: int) -> tuple[Gpu, ...]:
    """Takes GPUs on the fewest nodes: around all held GPUs, those of one node, or elsewhere."""
    still = tuple(gpu for gpu in held if gpu in room)
    best = _extend(room, still, size)
    if not still:
        return best
    ways = [tuple(g for g in still if g.node == node) for node in sorted({g.node for g in still})]
    for kept in (*ways, ()):
        if nodes_of(best) <= room.fewest_nodes(size):
            break
        room.release(best)
        other = _extend(room, kept, size)
        if nodes_of(other) < nodes_of(best):
            best = other
        else:
            room.release(other)
            room.take(best)
    return best


def _extend(room: GpuPool, kept: tuple[Gpu, ...], size: int) -> tuple[Gpu, ...]:
    """Takes the `kept` GPUs, or some of them, and other GPUs close to them."""
    room.take(kept)
    found = room.shrink(kept, size) if size < len(kept) else room.grow(kept, size)
    assert found is not None, "more was handed out than there is"
    return found


def repack(
    view: View, held_gpus: Mapping[JobId, tuple[Gpu, ...]], sizes: Mapping[JobId, int]
) -> Places | None:
    """Places all jobs, the largest first; None if the cluster is too large."""
    nodes = view.cluster.nodes
    if len(nodes) > MOST_NODES:
        return None
    free = {n.id: set(view.free.on(n.id)) for n in nodes.values() if n.state is NodeState.UP}
    settled = dict.fromkeys(free, 0)  # GPUs of jobs with an unchanged size
    for job, gpus in held_gpus.items():
        for gpu in gpus:
            free[gpu.node].add(gpu)
            settled[gpu.node] += len(gpus) == sizes.get(job, 0)
    places: Places = {}
    for job in sorted((job for job in sizes if sizes[job]), key=lambda job: -sizes[job]):
        mine = set(held_gpus.get(job, ()))
        if len(mine) == sizes[job]:
            for gpu in mine:
                settled[gpu.node] -= 1
        chosen: list[Gpu] = []
        while len(chosen) < sizes[job]:
            want = min(sizes[job] - len(chosen), view.cluster.width)
            node = _best_node(view, want, free, settled, mine)
            taken = sorted(mine & free[node])[:want]
            groups = nodes[node].groups
            taken += pick_gpus(free[node] - set(taken), want - len(taken), groups, taken)
            free[node] -= set(taken)
            chosen += taken
        places[job] = tuple(sorted(chosen))
    return places


def _best_node(
    view: View,
    want: int,
    free: Mapping[NodeId, set[Gpu]],
    settled: Mapping[NodeId, int],
    mine: set[Gpu],
) -> NodeId:
    """Returns the node with enough free GPUs, then with most GPUs of the job, then with the fewest
    GPUs of unchanged jobs, then with the fewest free GPUs."""
    own: dict[NodeId, int] = {}
    for gpu in mine:
        own[gpu.node] = own.get(gpu.node, 0) + (gpu in free[gpu.node])
    nodes = view.cluster.nodes

    def rank(node: NodeId) -> tuple[int, ...]:
        room = len(free[node])
        here = own.get(node, 0)
        return min(room, want), here, -settled[node], -room, -nodes[node].position

    return max(free, key=rank)


def nodes_of(gpus: tuple[Gpu, ...]) -> int:
    """
    >>> nodes_of((Gpu(NodeId("a"), 0), Gpu(NodeId("a"), 1), Gpu(NodeId("b"), 0)))
    2
    """
    return len({gpu.node for gpu in gpus})
