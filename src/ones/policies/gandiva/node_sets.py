"""The sets of nodes that jobs are assigned to, and the choice of a set for a job.

A job stays on the nodes of its set. If the jobs of a set need more GPUs than it has, they take
turns. A set has one node; a job that needs several nodes merges their sets. Jobs of one size share
nodes (the affinity of the publication), so that turns fit.

Sets that are alike for a choice are kept together in one entry of an index. A choice compares the
entries; there are as many as kinds of sets, however many nodes the cluster has.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from ones.core.cluster import Cluster, Node, NodeId, NodeState
from ones.core.job import JobId


class Likeness(NamedTuple):
    """What a choice compares of a set."""

    capacity: int  # GPUs
    demand: int  # GPUs that its jobs request
    affinity: int  # size of the jobs that the set is for; 0: it is empty
    least: int  # smallest demand of its jobs; 0: it is empty
    single: bool  # whether it has one node

    @property
    def free(self) -> int:
        return self.capacity - self.demand

    @property
    def height(self) -> float:
        """Demand relative to the GPUs; above 1 the jobs take turns."""
        return self.demand / self.capacity


@dataclass(slots=True)
class NodeSet:
    nodes: tuple[NodeId, ...]
    capacity: int  # GPUs
    jobs: dict[JobId, int] = field(default_factory=dict)  # their demands, in order of assignment
    position: int = 0  # of its first node, in the order of the cluster
    likeness: Likeness = field(init=False)

    def __post_init__(self) -> None:
        self.recount()

    def recount(self) -> None:
        sizes = self.jobs.values()
        self.likeness = Likeness(
            self.capacity,
            sum(sizes),
            next(iter(sizes), 0),
            min(sizes, default=0),
            len(self.nodes) == 1,
        )

    @property
    def demand(self) -> int:
        return self.likeness.demand

    @property
    def free(self) -> int:
        return self.likeness.free

    @property
    def height(self) -> float:
        return self.likeness.height

    @property
    def is_crowded(self) -> bool:
        """Whether the jobs take turns."""
        return self.likeness.demand > self.capacity


class NodeSets:
    def __init__(self) -> None:
        self._cluster: Cluster | None = None  # that the sets are for
        self._sets: dict[int, NodeSet] = {}  # by position
        self._alike: dict[Likeness, list[int]] = {}  # positions of the sets, in order
        self._of: dict[JobId, NodeSet] = {}
        self._capacities: dict[NodeId, int] = {}  # in the order of the cluster
        self._positions: dict[NodeId, int] = {}
        self.homeless: dict[JobId, int] = {}  # jobs larger than the cluster, and their demands

    def __iter__(self) -> Iterator[NodeSet]:
        return (self._sets[at] for at in sorted(self._sets))

    def of(self, job: JobId) -> NodeSet | None:
        return self._of.get(job)

    @property
    def any_crowded(self) -> bool:
        return any(like.demand > like.capacity for like in self._alike)

    def crowded(self) -> list[NodeSet]:
        """The sets with more demand than GPUs: their jobs take turns."""
        keys = [like for like in self._alike if like.demand > like.capacity]
        return [self._sets[at] for at in heapq.merge(*(self._alike[key] for key in keys))]

    def tallest(self, free: int) -> Iterator[NodeSet]:
        """The most crowded sets first, of those with a job of at most `free` GPUs. The sets may
        change meanwhile."""
        crowded = [
            like for like in self._alike if like.demand > like.capacity and like.least <= free
        ]
        crowded.sort(key=lambda like: -like.height)
        for _, group in groupby(crowded, key=lambda like: like.height):
            # copies: a set that changes leaves its entry
            copies = [list(self._alike.get(key, ())) for key in group]
            for at in heapq.merge(*copies):
                yield self._sets[at]

    # changes

    def follow(self, cluster: Cluster) -> None:
        """Takes over a changed cluster; jobs of sets that lost a node are assigned again."""
        if cluster is self._cluster:
            return
        self._cluster = cluster
        capacities = {n.id: _usable(n) for n in cluster.nodes.values() if _usable(n)}
        if capacities == self._capacities:
            return
        changed = {
            node
            for node in {*capacities, *self._capacities}
            if capacities.get(node) != self._capacities.get(node)
        }
        kept: list[NodeSet] = []
        moved: dict[JobId, int] = {}
        for nodes in self:
            if changed.intersection(nodes.nodes):
                moved |= nodes.jobs
            else:
                kept.append(nodes)
        present = {node for nodes in kept for node in nodes.nodes}
        kept += [NodeSet((node,), n) for node, n in capacities.items() if node not in present]
        self._rebuild(capacities, kept)
        for job in moved:
            self._of.pop(job, None)
        for job, demand in (moved | self.homeless).items():
            self.assign(job, demand)

    def _rebuild(self, capacities: dict[NodeId, int], sets: Iterable[NodeSet]) -> None:
        self._capacities = capacities
        self._positions = {node: i for i, node in enumerate(capacities)}
        self._sets, self._alike = {}, {}
        for nodes in sets:
            self._add(nodes)

    def _add(self, nodes: NodeSet) -> None:
        nodes.position = self._positions[nodes.nodes[0]]
        self._sets[nodes.position] = nodes
        self._enter(nodes)

    def _discard(self, nodes: NodeSet) -> None:
        self._leave(nodes)
        del self._sets[nodes.position]

    def _enter(self, nodes: NodeSet) -> None:
        nodes.recount()
        insort(self._alike.setdefault(nodes.likeness, []), nodes.position)

    def _leave(self, nodes: NodeSet) -> None:
        alike = self._alike[nodes.likeness]
        del alike[bisect_left(alike, nodes.position)]
        if not alike:
            del self._alike[nodes.likeness]

    def _put(self, nodes: NodeSet, job: JobId, demand: int) -> None:
        self._leave(nodes)
        nodes.jobs[job] = demand
        self._of[job] = nodes
        self._enter(nodes)

    def _take(self, job: JobId) -> tuple[NodeSet, int]:
        nodes = self._of.pop(job)
        self._leave(nodes)
        demand = nodes.jobs.pop(job)
        self._enter(nodes)
        return nodes, demand

    def assign(self, job: JobId, demand: int) -> None:
        """Chooses the set of a job: its own size, an empty one, any with room, or turns."""
        self.homeless.pop(job, None)
        nodes = self._choose(demand)
        if nodes is None:
            self.homeless[job] = demand
            return
        self._put(nodes, job, demand)

    def remove(self, job: JobId) -> NodeSet | None:
        """Removes a job; returns the set that has more room now."""
        self.homeless.pop(job, None)
        return self._take(job)[0] if job in self._of else None

    def move(self, job: JobId, to: NodeSet) -> None:
        self._put(to, job, self._take(job)[1])

    def split(self, nodes: NodeSet, running_on: Mapping[JobId, set[NodeId]]) -> list[NodeSet]:
        """Separates the nodes of a set that no job needs together; jobs stay where they run."""
        if len(nodes.nodes) == 1:
            return [nodes]
        largest = max(self._capacities[node] for node in nodes.nodes)
        if any(demand > largest for demand in nodes.jobs.values()):
            return [nodes]
        self._discard(nodes)
        parts = {node: NodeSet((node,), self._capacities[node]) for node in nodes.nodes}
        for part in parts.values():
            self._add(part)
        for job, demand in nodes.jobs.items():
            there = running_on.get(job, set())
            home = parts.get(next(iter(there))) if len(there) == 1 else None
            self._of.pop(job)
            if home is not None and home.free >= demand:
                self._put(home, job, demand)
            else:
                self.assign(job, demand)
        return list(parts.values())

    # choice

    def _choose(self, demand: int) -> NodeSet | None:
        with_room = [like for like in self._alike if like.free >= demand]
        matching = [like for like in with_room if like.affinity == demand]
        if matching:
            return self._first({like: like.height for like in matching})
        empty = [like for like in with_room if not like.affinity]
        if empty:
            return self._first({like: like.capacity for like in empty})
        if with_room:
            return self._first({like: like.free for like in with_room})
        large = [like for like in self._alike if like.capacity >= demand]
        if not any(like.single for like in large):
            merged = self._merge([like for like in self._alike if not like.affinity], demand)
            if merged is not None:
                return merged
        if large:
            same = [like for like in large if like.affinity == demand]
            return self._first({like: like.height for like in same or large})
        return self._merge(self._alike, demand)

    def _first(self, ranks: Mapping[Likeness, float]) -> NodeSet:
        """The first set, in the order of the cluster, of those with the lowest rank."""
        lowest = min(ranks.values())
        return self._sets[
            min(self._alike[like][0] for like, rank in ranks.items() if rank == lowest)
        ]

    def _merge(self, alike: Iterable[Likeness], demand: int) -> NodeSet | None:
        """One set of the least loaded ones that together hold the demand."""
        chosen: list[NodeSet] = []
        capacity = 0
        for nodes in self._least_loaded(alike):
            if capacity >= demand:
                break
            chosen.append(nodes)
            capacity += nodes.capacity
        if capacity < demand:
            return None
        names = sorted(
            (node for nodes in chosen for node in nodes.nodes), key=self._positions.__getitem__
        )
        merged = NodeSet(tuple(names), capacity)
        for nodes in chosen:
            merged.jobs |= nodes.jobs
            self._discard(nodes)
        self._add(merged)
        for job in merged.jobs:
            self._of[job] = merged
        return merged

    def _least_loaded(self, alike: Iterable[Likeness]) -> Iterator[NodeSet]:
        def rank(like: Likeness) -> tuple[float, int]:
            return (like.height, -like.capacity)

        for _, group in groupby(sorted(alike, key=rank), key=rank):
            for at in heapq.merge(*(self._alike[like] for like in group)):
                yield self._sets[at]

    # saved

    def save(self) -> dict[str, Any]:
        return {
            "capacities": dict(self._capacities),
            "sets": [[list(s.nodes), s.capacity, dict(s.jobs)] for s in self],
            "homeless": dict(self.homeless),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._cluster, self._of = None, {}
        sets: list[NodeSet] = []
        for names, capacity, jobs in saved["sets"]:
            demands = {JobId(job): int(demand) for job, demand in jobs.items()}
            nodes = NodeSet(tuple(map(NodeId, names)), int(capacity), demands)
            sets.append(nodes)
            self._of |= dict.fromkeys(demands, nodes)
        self._rebuild({NodeId(node): int(n) for node, n in saved["capacities"].items()}, sets)
        self.homeless = {JobId(job): int(demand) for job, demand in saved["homeless"].items()}


def _usable(node: Node) -> int:
    """GPUs that jobs may use, each counted once whatever its slots."""
    return node.devices - len(node.aside) if node.state is NodeState.UP else 0
