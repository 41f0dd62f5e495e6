"""Optimus' placement: over the fewest nodes that hold a job evenly, those with most room first.

Then the slowest link carries the least that it can.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from ones.core.cluster import Gpu, NodeId, NodeState
from ones.core.view import View
from ones.models.grouping import pick


class EvenNodes:
    """Free GPUs, and those that jobs give up, for one decision. A job costs its own nodes."""

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
        looked_at: list[NodeId] = []
        shares: list[int] = []
        while sum(shares) < size:
            looked_at.append(heappop(self._heap)[2])
            shares = self._shares(looked_at, size)
        chosen = []
        for node, share in zip(looked_at, shares, strict=True):
            mine = pick(self._free[node], share, self._nodes[node].groups)
            self._free[node] = [gpu for gpu in self._free[node] if gpu not in mine]
            chosen += mine
            if self._free[node]:
                heappush(self._heap, self._entry(node))
        return tuple(sorted(chosen))

    def _shares(self, nodes: list[NodeId], size: int) -> list[int]:
        """Even; if these nodes hold the job only unevenly and no others are left, as it goes."""
        even, rest = divmod(size, len(nodes))
        shares = [even + (i < rest) for i in range(len(nodes))]
        rooms = [len(self._free[node]) for node in nodes]
        if all(share <= room for share, room in zip(shares, rooms, strict=True)):
            return shares
        if self._heap:
            return []
        return [min(room, max(0, size - sum(rooms[:i]))) for i, room in enumerate(rooms)]
