"""Placement of jobs on the fewest nodes, with little fragmentation.

A job that fits one node gets the node with the fewest free GPUs that suffice; a larger one takes
whole nodes first and the rest where it fits best. Within a node the same holds for its groups
(`gpu_groups`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from ones.core.cluster import Gpu, NodeId, NodeState
from ones.core.free_gpus import FreeGpus
from ones.core.job import JobId
from ones.core.view import View
from ones.models.gpu_groups import count_groups, pick_gpus


class GpuPool:
    """The free GPUs of a view, less those placed since: for one decision.

    Costs time in the GPUs placed, not in the size of the cluster.
    """

    def __init__(self, view: View) -> None:
        self._free: FreeGpus = view.free
        self._cluster, self._nodes = view.cluster, view.cluster.nodes
        self._width = view.cluster.width
        self._by_node: dict[NodeId, list[Gpu]] = {}
        self._left = len(self._free)

    def __len__(self) -> int:
        return self._left

    def __contains__(self, gpu: Gpu) -> bool:
        return gpu in self.on(gpu.node)

    def release(self, gpus: Iterable[Gpu]) -> None:
        """Returns GPUs of a job to the pool, except those of draining nodes and cordoned ones."""
        for gpu in gpus:
            if self._cluster.state_of(gpu) is NodeState.UP:
                self.on(gpu.node).append(gpu)
                self._left += 1

    def take(self, gpus: Iterable[Gpu]) -> None:
        """Removes these GPUs, which must be free."""
        for gpu in gpus:
            self.on(gpu.node).remove(gpu)
            self._left -= 1

    def place(self, n_gpus: int) -> tuple[Gpu, ...] | None:
        """Takes `n_gpus` GPUs from the pool; None if there are not enough."""
        return self._place(n_gpus, self._best_node)

    def place_packed(self, n_gpus: int) -> tuple[Gpu, ...] | None:
        """As `place`, but None if that takes more nodes than on an empty cluster."""
        gpus = self.place(n_gpus)
        if gpus is not None and len({gpu.node for gpu in gpus}) > self.fewest_nodes(n_gpus):
            self.release(gpus)
            return None
        return gpus

    def fewest_nodes(self, n_gpus: int) -> int:
        if n_gpus <= self._width:
            return 1
        sizes = sorted(n.gpus for n in self._nodes.values() if n.state is NodeState.UP)
        nodes, left = 0, n_gpus
        while left > 0 and sizes:
            left -= sizes.pop()
            nodes += 1
        return nodes

    def place_in_fragments(self, n_gpus: int) -> tuple[Gpu, ...] | None:
        """As `place`, from the nodes with the fewest free GPUs first."""
        counts = range(1, self._width + 1)
        return self._place(n_gpus, lambda missing: self._first_of(counts, missing))

    def _place(self, n_gpus: int, next_node: Callable[[int], NodeId]) -> tuple[Gpu, ...] | None:
        if n_gpus > self._left:
            return None
        chosen: list[Gpu] = []
        while len(chosen) < n_gpus:
            missing = n_gpus - len(chosen)
            node = next_node(missing)
            picked = pick_gpus(self.on(node), missing, self._nodes[node].groups)
            self.take(picked)
            chosen += picked
        return tuple(sorted(chosen))

    def grow(self, held: tuple[Gpu, ...], n_gpus: int) -> tuple[Gpu, ...] | None:
        """The held GPUs and more, `n_gpus` in all: first on nodes of the job."""
        if n_gpus - len(held) > self._left:
            return None
        chosen = list(held)
        for node in sorted({g.node for g in held}, key=lambda n: (-len(self.on(n)), n)):
            beside = [gpu for gpu in held if gpu.node == node]
            missing = n_gpus - len(chosen)
            picked = pick_gpus(self.on(node), missing, self._nodes[node].groups, beside)
            self.take(picked)
            chosen += picked
        more = self.place(n_gpus - len(chosen))
        return None if more is None else tuple(sorted((*chosen, *more)))

    def shrink(self, held: tuple[Gpu, ...], n_gpus: int) -> tuple[Gpu, ...]:
        """`n_gpus` of the held GPUs, on as few nodes as possible; releases the others."""
        by_node: dict[NodeId, list[Gpu]] = {}
        for gpu in held:
            by_node.setdefault(gpu.node, []).append(gpu)
        fullest = sorted(by_node.values(), key=lambda gpus: (-len(gpus), gpus[0]))
        kept: list[Gpu] = []
        for gpus in fullest:
            kept += pick_gpus(gpus, n_gpus - len(kept), self._nodes[gpus[0].node].groups)
        self.release(gpu for gpu in held if gpu not in set(kept))
        return tuple(sorted(kept))

    def arrange(
        self, staying: Mapping[JobId, tuple[Gpu, ...]], sizes: Mapping[JobId, int]
    ) -> dict[JobId, tuple[Gpu, ...]]:
        """The GPUs of all jobs; those that shrink come first, so that others can grow.

        The sizes must not exceed, in sum, the free GPUs and those of the staying jobs.
        """
        kept = {}
        for job, gpus in staying.items():
            size = sizes.get(job, 0)
            kept[job] = self.shrink(gpus, size) if size < len(gpus) else gpus
        places = {}
        for job, size in sizes.items():
            if size:
                grown = self.grow(kept[job], size) if size > len(kept[job]) else kept[job]
                assert grown is not None, "the sizes exceed the GPUs"
                places[job] = grown
        return places

    def on(self, node: NodeId) -> list[Gpu]:
        """The GPUs of a node that are still free."""
        if node not in self._by_node:
            self._by_node[node] = list(self._free.on(node))
        return self._by_node[node]

    def _best_node(self, missing: int) -> NodeId:
        """The node with the fewest free GPUs that suffice, or else with the most."""
        counts = (*range(missing, self._width + 1), *range(min(missing - 1, self._width), 0, -1))
        return self._first_of(counts, missing)

    def _first_of(self, free_counts: Iterable[int], missing: int) -> NodeId:
        for free in free_counts:
            node = self._first_with(free, missing)
            if node is not None:
                return node
        raise AssertionError("there are free GPUs but no node has any")

    def _first_with(self, free: int, missing: int) -> NodeId | None:
        """The first node, in the cluster's order, with exactly `free` free GPUs; where nodes have
        groups, of those on which the missing GPUs are in the fewest groups."""
        fits = [n for n, gpus in self._by_node.items() if len(gpus) == free]
        untouched = (n for n in self._free.nodes_with(free) if n not in self._by_node)
        if not self._cluster.grouped:
            fits += islice(untouched, 1)
            return min(fits, key=lambda n: self._nodes[n].position, default=None)
        fits += untouched
        return min(
            fits,
            key=lambda n: (self._groups_used(n, missing), self._nodes[n].position),
            default=None,
        )

    def _groups_used(self, node: NodeId, missing: int) -> int:
        groups = self._nodes[node].groups
        there = self._by_node.get(node) or self._free.on(node)
        return count_groups(pick_gpus(there, missing, groups), groups)
