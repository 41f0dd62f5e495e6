"""Where to put the workers of a job: on the fewest nodes, leaving the least broken room.

A job that fits one node goes to the node with the least sufficient room; a larger one
takes whole nodes first and puts the rest where it fits best. Within a node the same holds for
its groups (`grouping`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from ones.core.cluster import Gpu, NodeId, NodeState
from ones.core.free import FreeGpus
from ones.core.job import JobId
from ones.core.view import View
from ones.models.grouping import parts, pick


class Room:
    """The free GPUs of a view, less what has been handed out since: for one decision.

    Costs what was handed out, not the cluster.
    """

    def __init__(self, view: View) -> None:
        self._free: FreeGpus = view.free
        self._cluster, self._nodes = view.cluster, view.cluster.nodes
        self._width = view.cluster.width
        self._changed: dict[NodeId, list[Gpu]] = {}
        self._left = len(self._free)

    def __len__(self) -> int:
        return self._left

    def __contains__(self, gpu: Gpu) -> bool:
        return gpu in self._on(gpu.node)

    def release(self, gpus: Iterable[Gpu]) -> None:
        """GPUs that a job of this decision gives up; those of draining nodes, and
        those set aside, are not for others."""
        for gpu in gpus:
            if self._cluster.state_of(gpu) is NodeState.UP:
                self._on(gpu.node).append(gpu)
                self._left += 1

    def take(self, gpus: Iterable[Gpu]) -> None:
        """These very GPUs, which must be free."""
        for gpu in gpus:
            self._on(gpu.node).remove(gpu)
            self._left -= 1

    def place(self, n_gpus: int) -> tuple[Gpu, ...] | None:
        """GPUs for so many workers, taken; None if there are not enough."""
        if n_gpus > self._left:
            return None
        chosen: list[Gpu] = []
        while len(chosen) < n_gpus:
            missing = n_gpus - len(chosen)
            node = self._best_node(missing)
            mine = pick(self._on(node), missing, self._nodes[node].groups)
            self.take(mine)
            chosen += mine
        return tuple(sorted(chosen))

    def place_packed(self, n_gpus: int) -> tuple[Gpu, ...] | None:
        """As `place`, but None if it would take more nodes than on an empty cluster."""
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
        """As `place`, from the nodes with the least room: for a job that does not mind."""
        if n_gpus > self._left:
            return None
        chosen: list[Gpu] = []
        while len(chosen) < n_gpus:
            missing = n_gpus - len(chosen)
            node = self._first_of(range(1, self._width + 1), missing)
            mine = pick(self._on(node), missing, self._nodes[node].groups)
            self.take(mine)
            chosen += mine
        return tuple(sorted(chosen))

    def grow(self, held: tuple[Gpu, ...], n_gpus: int) -> tuple[Gpu, ...] | None:
        """The held GPUs and others, up to so many: first where the job is already."""
        if n_gpus - len(held) > self._left:
            return None
        chosen = list(held)
        for node in sorted({g.node for g in held}, key=lambda n: (-len(self._on(n)), n)):
            beside = [gpu for gpu in held if gpu.node == node]
            missing = n_gpus - len(chosen)
            mine = pick(self._on(node), missing, self._nodes[node].groups, beside)
            self.take(mine)
            chosen += mine
        more = self.place(n_gpus - len(chosen))
        return None if more is None else tuple(sorted((*chosen, *more)))

    def shrink(self, held: tuple[Gpu, ...], n_gpus: int) -> tuple[Gpu, ...]:
        """So many of the held GPUs, on as few nodes as can be; the others are released."""
        by_node: dict[NodeId, list[Gpu]] = {}
        for gpu in held:
            by_node.setdefault(gpu.node, []).append(gpu)
        fullest = sorted(by_node.values(), key=lambda gpus: (-len(gpus), gpus[0]))
        kept: list[Gpu] = []
        for gpus in fullest:
            kept += pick(gpus, n_gpus - len(kept), self._nodes[gpus[0].node].groups)
        self.release(gpu for gpu in held if gpu not in set(kept))
        return tuple(sorted(kept))

    def arrange(
        self, staying: Mapping[JobId, tuple[Gpu, ...]], sizes: Mapping[JobId, int]
    ) -> dict[JobId, tuple[Gpu, ...]]:
        """Where everybody goes: first those who give, so that there is something to take.

        Sizes must not exceed, together, what is free and what the staying ones hold.
        """
        kept = {}
        for job, gpus in staying.items():
            size = sizes.get(job, 0)
            kept[job] = self.shrink(gpus, size) if size < len(gpus) else gpus
        places = {}
        for job, size in sizes.items():
            if size:
                grown = self.grow(kept[job], size) if size > len(kept[job]) else kept[job]
                assert grown is not None, "more was handed out than there is"
                places[job] = grown
        return places

    def _on(self, node: NodeId) -> list[Gpu]:
        if node not in self._changed:
            self._changed[node] = list(self._free.on(node))
        return self._changed[node]

    def _best_node(self, missing: int) -> NodeId:
        """The least sufficient room, or else the most there is."""
        rooms = (*range(missing, self._width + 1), *range(min(missing - 1, self._width), 0, -1))
        return self._first_of(rooms, missing)

    def _first_of(self, rooms: Iterable[int], missing: int) -> NodeId:
        for room in rooms:
            node = self._first_with(room, missing)
            if node is not None:
                return node
        raise AssertionError("there are free GPUs but no node has any")

    def _first_with(self, room: int, missing: int) -> NodeId | None:
        """The first node, in the cluster's order, with exactly so much room; where GPUs have
        groups, of those on which the missing workers would be in the fewest."""
        fits = [n for n, gpus in self._changed.items() if len(gpus) == room]
        untouched = (n for n in self._free.nodes_with(room) if n not in self._changed)
        if not self._cluster.grouped:
            fits += islice(untouched, 1)
            return min(fits, key=lambda n: self._nodes[n].position, default=None)
        fits += untouched
        return min(
            fits, key=lambda n: (self._parts(n, missing), self._nodes[n].position), default=None
        )

    def _parts(self, node: NodeId, missing: int) -> int:
        groups = self._nodes[node].groups
        there = self._changed.get(node) or self._free.on(node)
        return parts(pick(there, missing, groups), groups)
