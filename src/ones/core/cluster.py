"""Nodes and their GPUs.

A GPU is identified by its node and its index there; no other device ever gets that name. Nodes keep
the order in which they were added. Placement prefers early nodes, so equal runs place workers
alike. GPUs of a node that are closer to one another than to the rest (NVLink, a socket) form a
group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, NewType, Self

from msgspec.structs import replace

from ones.errors import InvalidSettingError
from ones.wire.bounds import Gpus, Index, Number, Positive, Value

NodeId = NewType("NodeId", str)


class Gpu(NamedTuple):
    """One device, identified by its node and its index there."""

    node: NodeId
    index: Index  # type: ignore[assignment]  # hides tuple.index, which is not used

    def __str__(self) -> str:
        return f"{self.node}/{self.index}"


class NodeState(StrEnum):
    UP = "up"
    DRAINING = "draining"  # present workers may stay, no new worker is placed
    DOWN = "down"


class Node(Value, frozen=True):
    """A machine with GPUs."""

    id: NodeId
    gpus: Gpus
    state: NodeState = NodeState.UP
    position: Number = 0  # in the cluster's order; set by `Cluster`
    aside: tuple[Index, ...] = ()  # cordoned GPUs: draining while the node is up
    groups: tuple[Index, ...] = ()  # number of each GPU's group, by index; empty: no groups
    slots: Positive = 1  # of each GPU: jobs that may share it (2: only in the simulator)
    rack: str = ""  # nodes of one rack are close to one another; empty: not known

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise InvalidSettingError(f"node {self.id}: gpus {self.gpus} is not at least 1")
        if self.gpus % self.slots:
            raise InvalidSettingError(f"node {self.id}: {self.gpus} GPUs in slots of {self.slots}")
        if self.groups and len(self.groups) != self.gpus:
            raise InvalidSettingError(
                f"node {self.id}: groups {list(self.groups)} for {self.gpus} GPUs"
            )

    @property
    def devices(self) -> int:
        """GPUs, each counted once: `gpus` counts its slots. The slots of GPU i are i, i + devices,
        and so on."""
        return self.gpus // self.slots

    @property
    def order(self) -> Sequence[int]:
        """Indexes of the node's GPUs, those of one group side by side.

        >>> Node(NodeId("n0"), 4, groups=(0, 1, 0, 1)).order
        [0, 2, 1, 3]
        """
        if not self.groups:
            return range(self.gpus)
        return sorted(range(self.gpus), key=lambda index: (self.groups[index], index))


class Cluster:
    """The nodes, in order. Immutable: a change returns another cluster."""

    __slots__ = ("_nodes", "grouped", "n_devices", "n_gpus", "width")

    def __init__(self, nodes: Iterator[Node] | tuple[Node, ...] | list[Node] = ()) -> None:
        table: dict[NodeId, Node] = {}
        for position, node in enumerate(nodes):
            if node.id in table:
                raise InvalidSettingError(f"node {node.id} is in the cluster twice")
            # most nodes keep their position and need no copy
            kept = node.position == position
            table[node.id] = node if kept else replace(node, position=position)
        self._nodes = table
        usable = [n.gpus for n in table.values() if n.state is not NodeState.DOWN]
        self.n_gpus = sum(usable)  # of the nodes that are not down
        self.n_devices = sum(n.devices for n in table.values() if n.state is not NodeState.DOWN)
        self.width = max(usable, default=0)  # GPUs of the largest node
        self.grouped = any(n.groups for n in table.values())  # whether any node has groups of GPUs

    @classmethod
    def of(cls, n_gpus: int, gpus_per_node: int = 4, *, nodes_per_rack: int = 0) -> Self:
        """Equal nodes named n0, n1, ...; the last may be smaller. `nodes_per_rack` 0: no racks.

        >>> [n.gpus for n in Cluster.of(10, 4).nodes.values()]
        [4, 4, 2]
        """
        if n_gpus < 1:
            raise InvalidSettingError(f"gpus: {n_gpus} is not at least 1")
        if gpus_per_node < 1:
            raise InvalidSettingError(f"gpus per node: {gpus_per_node} is not at least 1")
        whole, rest = divmod(n_gpus, gpus_per_node)
        sizes = [gpus_per_node] * whole + ([rest] if rest else [])
        if nodes_per_rack < 0:
            raise InvalidSettingError(f"nodes per rack: {nodes_per_rack} is negative")
        racks = [f"r{i // nodes_per_rack}" if nodes_per_rack else "" for i in range(len(sizes))]
        return cls(
            [
                Node(NodeId(f"n{i}"), size, rack=rack)
                for i, (size, rack) in enumerate(zip(sizes, racks, strict=True))
            ]
        )

    @property
    def nodes(self) -> Mapping[NodeId, Node]:
        return MappingProxyType(self._nodes)

    def gpus(self) -> Iterator[Gpu]:
        """Every GPU of every node that is not down, in the cluster's order."""
        for node in self._nodes.values():
            if node.state is not NodeState.DOWN:
                for index in node.order:
                    yield Gpu(node.id, index)

    def state_of(self, gpu: Gpu) -> NodeState | None:
        """State of the GPU's node, or draining for a cordoned GPU; None if there is no such GPU."""
        node = self._nodes.get(gpu.node)
        if node is None or not 0 <= gpu.index < node.gpus:
            return None
        if node.aside and gpu.index in node.aside and node.state is NodeState.UP:
            return NodeState.DRAINING
        return node.state

    def shared(self, slots: int) -> Cluster:
        """The same nodes, each GPU with this number of slots."""
        nodes = self._nodes.values()
        return Cluster([replace(n, gpus=n.devices * slots, slots=slots) for n in nodes])

    def with_node(self, node: Node) -> Cluster:
        """The cluster with this node added, or replaced at its position."""
        return Cluster(list({**self._nodes, node.id: node}.values()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cluster) and list(self._nodes.values()) == list(
            other._nodes.values()
        )

    def __hash__(self) -> int:
        return hash(tuple(self._nodes.values()))

    def __repr__(self) -> str:
        return f"Cluster({list(self._nodes.values())!r})"
