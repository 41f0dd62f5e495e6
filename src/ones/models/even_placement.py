"""Optimus' placement: evenly over the fewest nodes that hold a job, most free GPUs first.

Then the slowest link has the least traffic.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from ones.core.cluster import Gpu, NodeId, NodeState
from ones.core.view import View
from ones.models.gpu_groups import pick_gpus


class EvenPlacement:
    """Free and released GPUs, for one decision. Placing a job costs time in its own nodes only."""

    def __init__(self, view: View, released: Iterable[Gpu]) -> None:
        self._free: dict[NodeId, list[Gpu]] = {}
        for node in view.cluster.nodes.values():
            if node.state is NodeState.UP:
                self._free[node.id] = list(view.free.on(node.id))
        for gpu in released:
            self._free[gpu.node].append(gpu)
        self._nodes = view.cluster.nodes
        self._heap = [self._entry(node) for node, gpus in self._free.items() if gpus]
        heapify(self._heap)

    def _entry(self, node: NodeId) -> tuple[int, int, NodeId]:
        return (-len(self._free[node]), self._nodes[node].position, node)

    def place(self, size: int) -> tuple[Gpu, ...]:
        nodes: list[NodeId] = []
        shares: list[int] = []
        while sum(shares) < size:
            nodes.append(heappop(self._heap)[2])
            shares = self._shares(nodes, size)
        chosen = []
        for node, share in zip(nodes, shares, strict=True):
            picked = pick_gpus(self._free[node], share, self._nodes[node].groups)
            self._free[node] = [gpu for gpu in self._free[node] if gpu not in picked]
            chosen += picked
            if self._free[node]:
                heappush(self._heap, self._entry(node))
        return tuple(sorted(chosen))

    def _shares(self, nodes: list[NodeId], size: int) -> list[int]:
        """Even shares; uneven ones if no other nodes are left; [] if these nodes are too small."""
        even, rest = divmod(size, len(nodes))
        shares = [even + (i < rest) for i in range(len(nodes))]
        free = [len(self._free[node]) for node in nodes]
        if all(share <= count for share, count in zip(shares, free, strict=True)):
            return shares
        if self._heap:
            return []
        return [min(count, max(0, size - sum(free[:i]))) for i, count in enumerate(free)]
