"""The GPUs that are assigned to no job, by node and by the number of free GPUs of a node."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from ones.core.cluster import Cluster, Gpu, Node, NodeId, NodeState


class FreeGpus:
    """An index of free GPUs that `State` keeps and policies read.

    Taking and giving a GPU costs the same on any cluster. A node's free GPUs are the bits of one
    integer; "room" is their number.
    """

    __slots__ = ("_bits", "_by_room", "_length", "_nodes", "_orders")

    def __init__(self, cluster: Cluster) -> None:
        self._nodes: list[Node] = []
        self._bits: dict[NodeId, int] = {}
        self._by_room: dict[int, list[int]] = {}  # room -> positions of nodes, in order
        self._orders: dict[NodeId, Sequence[int]] = {}  # of nodes with groups
        self._length = 0
        self.resize(cluster)

    def resize(self, cluster: Cluster) -> None:
        """Follow a changed cluster: known nodes keep their bits, new ones start with none free."""
        self._nodes = list(cluster.nodes.values())
        if cluster.grouped or self._orders:
            self._orders = {node.id: node.order for node in self._nodes if node.groups}
        for node in self._nodes:
            if node.id not in self._bits:
                self._bits[node.id] = 0
                insort(self._by_room.setdefault(0, []), node.position)

    def open_node(self, node: Node, except_for: frozenset[int] = frozenset()) -> None:
        for index in range(node.gpus):
            if index not in except_for:
                self.give(Gpu(node.id, index), node)

    def close_node(self, node: Node) -> None:
        self._move(node, 0)

    def give(self, gpu: Gpu, node: Node) -> None:
        if node.state is NodeState.UP and not (node.aside and gpu.index in node.aside):
            self._move(node, self._bits[node.id] | (1 << gpu.index))

    def take(self, gpu: Gpu, node: Node) -> None:
        self._move(node, self._bits[node.id] & ~(1 << gpu.index))

    def _move(self, node: Node, bits: int) -> None:
        before, after = self._bits[node.id].bit_count(), bits.bit_count()
        if before == after:
            self._bits[node.id] = bits
            return
        there = self._by_room[before]
        del there[bisect_left(there, node.position)]
        insort(self._by_room.setdefault(after, []), node.position)
        self._bits[node.id] = bits
        self._length += after - before

    def __len__(self) -> int:
        return self._length

    def __contains__(self, gpu: Gpu) -> bool:
        return bool(self._bits.get(gpu.node, 0) >> gpu.index & 1)

    def __iter__(self) -> Iterator[Gpu]:
        """Free GPUs in the cluster's order. Costs the GPUs that are read and the full nodes before
        them."""
        for node in self._nodes:
            yield from self.on(node.id)

    def on(self, node: NodeId) -> Iterator[Gpu]:
        bits = self._bits.get(node, 0)
        if node in self._orders:
            yield from (Gpu(node, index) for index in self._orders[node] if bits >> index & 1)
            return
        while bits:
            low = bits & -bits
            yield Gpu(node, low.bit_length() - 1)
            bits ^= low

    def room(self, node: NodeId) -> int:
        return self._bits.get(node, 0).bit_count()

    def nodes_with(self, room: int) -> Iterator[NodeId]:
        """Nodes with exactly this number of free GPUs, in the cluster's order."""
        return (self._nodes[position].id for position in self._by_room.get(room, ()))
