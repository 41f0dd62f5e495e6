"""Where workers can be: nodes and their GPUs.

A GPU is known by its node and its index there, and that name is never given to
another device. Nodes keep the order in which they came: placement prefers early
ones, so that equal runs place alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, NewType, Self

from ones.errors import InvalidSettingError

NodeId = NewType("NodeId", str)


class Gpu(NamedTuple):
    """One device: the node it is in, and its index there."""

    node: NodeId
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here

    def __str__(self) -> str:
        return f"{self.node}/{self.index}"


class NodeState(StrEnum):
    UP = "up"
    DRAINING = "draining"  # those who are there may stay, nobody new comes
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with GPUs."""

    id: NodeId
    gpus: int
    state: NodeState = NodeState.UP
    position: int = 0  # its place in the cluster's order; set by the cluster
    aside: tuple[int, ...] = ()  # GPUs of it that draining holds for, whatever holds for the rest

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise InvalidSettingError(f"node {self.id}: gpus {self.gpus} is not at least 1")


class Cluster:
    """The nodes, in order. A value: changing it gives another one."""

    __slots__ = ("_nodes", "n_gpus", "width")

    def __init__(self, nodes: Iterator[Node] | tuple[Node, ...] | list[Node] = ()) -> None:
        table: dict[NodeId, Node] = {}
        for position, node in enumerate(nodes):
            if node.id in table:
                raise InvalidSettingError(f"node {node.id} is in the cluster twice")
            table[node.id] = replace(node, position=position)
        self._nodes = table
        usable = [n.gpus for n in table.values() if n.state is not NodeState.DOWN]
        self.n_gpus = sum(usable)  # of the nodes that are not down
        self.width = max(usable, default=0)  # GPUs of the largest node

    @classmethod
    def of(cls, n_gpus: int, gpus_per_node: int = 4) -> Self:
        """Equal nodes named n0, n1, ...; the last may be smaller.

        >>> [n.gpus for n in Cluster.of(10, 4).nodes.values()]
        [4, 4, 2]
        """
        if n_gpus < 1:
            raise InvalidSettingError(f"gpus: {n_gpus} is not at least 1")
        if gpus_per_node < 1:
            raise InvalidSettingError(f"gpus per node: {gpus_per_node} is not at least 1")
        whole, rest = divmod(n_gpus, gpus_per_node)
        sizes = [gpus_per_node] * whole + ([rest] if rest else [])
        return cls([Node(NodeId(f"n{i}"), size) for i, size in enumerate(sizes)])

    @property
    def nodes(self) -> Mapping[NodeId, Node]:
        return MappingProxyType(self._nodes)

    def gpus(self) -> Iterator[Gpu]:
        """Every GPU of every node that is not down, in the cluster's order."""
        for node in self._nodes.values():
            if node.state is not NodeState.DOWN:
                for index in range(node.gpus):
                    yield Gpu(node.id, index)

    def state_of(self, gpu: Gpu) -> NodeState | None:
        """That of its node, or draining if it was set aside; None if there is no such GPU."""
        node = self._nodes.get(gpu.node)
        if node is None or not 0 <= gpu.index < node.gpus:
            return None
        if node.aside and gpu.index in node.aside and node.state is NodeState.UP:
            return NodeState.DRAINING
        return node.state

    def with_node(self, node: Node) -> Cluster:
        """The cluster with this node added, or changed where it stands."""
        return Cluster(list({**self._nodes, node.id: node}.values()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cluster) and list(self._nodes.values()) == list(
            other._nodes.values()
        )

    def __hash__(self) -> int:
        return hash(tuple(self._nodes.values()))

    def __repr__(self) -> str:
        return f"Cluster({list(self._nodes.values())!r})"
