"""The sets of nodes that jobs are assigned to, and the choice of a set for a job.

A job stays on the nodes of its set. If the jobs of a set need more GPUs than it has, they take
turns. A set has one node; a job that needs several nodes merges their sets. Jobs of one size share
nodes (the affinity of the publication), so that turns fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ones.core.cluster import Cluster, Node, NodeId, NodeState
from ones.core.job import JobId


@dataclass(slots=True)
class NodeSet:
    nodes: tuple[NodeId, ...]
    capacity: int  # GPUs
    jobs: dict[JobId, int] = field(default_factory=dict)  # their demands, in order of assignment

    @property
    def demand(self) -> int:
        return sum(self.jobs.values())

    @property
    def free(self) -> int:
        return self.capacity - self.demand

    @property
    def height(self) -> float:
        """Demand relative to the GPUs; above 1 the jobs take turns."""
        return self.demand / self.capacity

    @property
    def affinity(self) -> int:
        """Size of the jobs that the set is for; 0: it is empty."""
        return next(iter(self.jobs.values()), 0)


class NodeSets:
    def __init__(self) -> None:
        self._sets: dict[NodeId, NodeSet] = {}  # by first node, in the order of the cluster
        self._of: dict[JobId, NodeSet] = {}
        self._capacities: dict[NodeId, int] = {}
        self.homeless: dict[JobId, int] = {}  # jobs larger than the cluster, and their demands

    def __iter__(self) -> Iterator[NodeSet]:
        return iter(self._sets.values())

    def of(self, job: JobId) -> NodeSet | None:
        return self._of.get(job)

    def crowded(self) -> list[NodeSet]:
        """The sets with more demand than GPUs: their jobs take turns."""
        return [nodes for nodes in self._sets.values() if nodes.demand > nodes.capacity]

    # changes

    def follow(self, cluster: Cluster) -> None:
        """Takes over a changed cluster; jobs of sets that lost a node are assigned again."""
        capacities = {n.id: _usable(n) for n in cluster.nodes.values() if _usable(n)}
        if capacities == self._capacities:
            return
        changed = {
            node
            for node in {*capacities, *self._capacities}
            if capacities.get(node) != self._capacities.get(node)
        }
        moved: dict[JobId, int] = {}
        for first, nodes in list(self._sets.items()):
            if changed.intersection(nodes.nodes):
                moved |= nodes.jobs
                del self._sets[first]
        self._capacities = capacities
        present = {node for nodes in self._sets.values() for node in nodes.nodes}
        for node, capacity in capacities.items():
            if node not in present:
                self._sets[node] = NodeSet((node,), capacity)
        order = {node: i for i, node in enumerate(capacities)}
        self._sets = dict(sorted(self._sets.items(), key=lambda item: order[item[0]]))
        for job in moved:
            self._of.pop(job, None)
        for job, demand in (moved | self.homeless).items():
            self.assign(job, demand)

    def assign(self, job: JobId, demand: int) -> None:
        """Chooses the set of a job: its own size, an empty one, any with room, or turns."""
        self.homeless.pop(job, None)
        nodes = self._choose(demand)
        if nodes is None:
            self.homeless[job] = demand
            return
        nodes.jobs[job] = demand
        self._of[job] = nodes

    def remove(self, job: JobId) -> NodeSet | None:
        """Removes a job; returns the set that has more room now."""
        self.homeless.pop(job, None)
        nodes = self._of.pop(job, None)
        if nodes is not None:
            del nodes.jobs[job]
        return nodes

    def move(self, job: JobId, to: NodeSet) -> None:
        demand = self._of[job].jobs.pop(job)
        to.jobs[job] = demand
        self._of[job] = to

    def split(self, nodes: NodeSet, running_on: Mapping[JobId, set[NodeId]]) -> list[NodeSet]:
        """Separates the nodes of a set that no job needs together; jobs stay where they run."""
        if len(nodes.nodes) == 1:
            return [nodes]
        largest = max(self._capacities[node] for node in nodes.nodes)
        if any(demand > largest for demand in nodes.jobs.values()):
            return [nodes]
        del self._sets[nodes.nodes[0]]
        parts = {node: NodeSet((node,), self._capacities[node]) for node in nodes.nodes}
        self._sets |= parts
        order = {node: i for i, node in enumerate(self._capacities)}
        self._sets = dict(sorted(self._sets.items(), key=lambda item: order[item[0]]))
        for job, demand in nodes.jobs.items():
            there = running_on.get(job, set())
            part = parts.get(next(iter(there))) if len(there) == 1 else None
            self._of.pop(job)
            if part is not None and part.free >= demand:
                part.jobs[job] = demand
                self._of[job] = part
            else:
                self.assign(job, demand)
        return list(parts.values())

    # choice

    def _choose(self, demand: int) -> NodeSet | None:
        sets = list(self._sets.values())
        with_room = [nodes for nodes in sets if nodes.free >= demand]
        alike = [nodes for nodes in with_room if nodes.affinity == demand]
        if alike:
            return min(alike, key=lambda nodes: nodes.height)
        empty = [nodes for nodes in with_room if not nodes.jobs]
        if empty:
            return min(empty, key=lambda nodes: nodes.capacity)
        if with_room:
            return min(with_room, key=lambda nodes: nodes.free)
        large = [nodes for nodes in sets if nodes.capacity >= demand]
        if not large or not any(len(nodes.nodes) == 1 for nodes in large):
            merged = self._merge([n for n in sets if not n.jobs], demand)
            if merged is not None:
                return merged
        if large:
            same = [nodes for nodes in large if nodes.affinity == demand]
            return min(same or large, key=lambda nodes: nodes.height)
        return self._merge(sets, demand)

    def _merge(self, sets: Iterable[NodeSet], demand: int) -> NodeSet | None:
        """One set of the least loaded ones that together hold the demand."""
        chosen: list[NodeSet] = []
        capacity = 0
        for nodes in sorted(sets, key=lambda nodes: (nodes.height, -nodes.capacity)):
            if capacity >= demand:
                break
            chosen.append(nodes)
            capacity += nodes.capacity
        if capacity < demand:
            return None
        order = {node: i for i, node in enumerate(self._capacities)}
        names = sorted((node for nodes in chosen for node in nodes.nodes), key=order.__getitem__)
        merged = NodeSet(tuple(names), capacity)
        for nodes in chosen:
            merged.jobs |= nodes.jobs
            del self._sets[nodes.nodes[0]]
        self._sets[merged.nodes[0]] = merged
        self._sets = dict(sorted(self._sets.items(), key=lambda item: order[item[0]]))
        for job in merged.jobs:
            self._of[job] = merged
        return merged

    # saved

    def save(self) -> dict[str, Any]:
        return {
            "capacities": dict(self._capacities),
            "sets": [[list(s.nodes), s.capacity, dict(s.jobs)] for s in self._sets.values()],
            "homeless": dict(self.homeless),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._capacities = {NodeId(node): int(n) for node, n in saved["capacities"].items()}
        self._sets, self._of = {}, {}
        for names, capacity, jobs in saved["sets"]:
            demands = {JobId(job): int(demand) for job, demand in jobs.items()}
            nodes = NodeSet(tuple(map(NodeId, names)), int(capacity), demands)
            self._sets[nodes.nodes[0]] = nodes
            self._of |= dict.fromkeys(demands, nodes)
        self.homeless = {JobId(job): int(demand) for job, demand in saved["homeless"].items()}


def _usable(node: Node) -> int:
    """GPUs that jobs may use, each counted once whatever its slots."""
    return node.devices - len(node.aside) if node.state is NodeState.UP else 0
