"""Sia's placement of jobs on whole nodes and parts of nodes: unchanged jobs stay.

Whole-node jobs are placed first, on empty nodes; then the others, largest first, where they leave
the fewest free GPUs. If fragmentation blocks a job, smaller jobs inside one node are evicted and
placed again.
"""

from __future__ import annotations

from collections.abc import Mapping

from ones.core.cluster import NodeId
from ones.core.job import JobId

Counts = dict[NodeId, int]


class WholeNodePlacement:
    """Places jobs on nodes.

    `capacity`: free GPUs of each node without these jobs; `sizes`: all GPUs of the node; `held`:
    current GPUs of the jobs; `wanted`: new number of GPUs of each, in sum within the capacity.
    """

    def __init__(
        self,
        capacity: Mapping[NodeId, int],
        sizes: Mapping[NodeId, int],
        held: Mapping[JobId, Mapping[NodeId, int]],
        wanted: Mapping[JobId, int],
    ) -> None:
        self._left = dict(capacity)
        self._sizes, self._held, self._wanted = sizes, held, wanted
        self._width = max(sizes.values(), default=1)
        self._position = {node: i for i, node in enumerate(capacity)}
        self._placed: dict[JobId, Counts] = {}
        self._staying: dict[JobId, NodeId] = {}  # inside one node: may be evicted

    def place_all(self) -> dict[JobId, Counts]:
        """GPUs of each job on each node."""
        waiting = []
        for job, size in self._wanted.items():
            here = dict(self._held.get(job, {}))
            fewest = -(-size // self._width)
            if sum(here.values()) == size and len(here) <= fewest:
                self._put(job, here)
                if len(here) == 1:
                    self._staying[job] = next(iter(here))
            else:
                waiting.append(job)
        while waiting:
            waiting.sort(key=lambda job: (-self._wanted[job], job))
            waiting += self._place(waiting.pop(0))
        return self._placed

    def _place(self, job: JobId) -> list[JobId]:
        """Places a job; returns the jobs evicted for it."""
        size = self._wanted[job]
        nodes = size // self._width if size >= self._width else 0
        evicted: list[JobId] = []
        counts: Counts = {}
        for _ in range(nodes):
            node, gone = self._empty_node(job, counts)
            if node is None:
                break
            evicted += gone
            counts[node] = self._left[node]
            self._left[node] = 0
        rest = size - sum(counts.values())
        if 0 < rest < self._width:
            node, gone = self._node_with(job, rest)
            if node is not None:
                evicted += gone
                counts[node] = counts.get(node, 0) + rest
                self._left[node] -= rest
        rest = size - sum(counts.values())
        for node in sorted(self._left, key=lambda n: (-self._left[n], self._position[n])):
            # else on any free GPUs
            more = min(rest, self._left[node])
            if more:
                counts[node] = counts.get(node, 0) + more
                self._left[node] -= more
                rest -= more
        self._placed[job] = counts
        return evicted

    def _empty_node(self, job: JobId, taken: Counts) -> tuple[NodeId | None, list[JobId]]:
        """An empty node, or the one where the fewest GPUs must be evicted."""
        options = []
        for node, left in self._left.items():
            there = [j for j, n in self._staying.items() if n == node]
            freed = sum(self._wanted[j] for j in there)
            if left + freed == self._sizes[node] == self._width and node not in taken:
                mine = -self._held.get(job, {}).get(node, 0)
                options.append((freed, mine, self._position[node], node, there))
        if not options:
            return None, []
        *_, node, there = min(options, key=lambda o: o[:3])
        self._evict(there)
        return node, there

    def _node_with(self, job: JobId, size: int) -> tuple[NodeId | None, list[JobId]]:
        """The node with the fewest free GPUs that suffice, or the one with the fewest to evict."""
        mine = self._held.get(job, {})
        fits = [n for n, left in self._left.items() if left >= size]
        if fits:
            return min(fits, key=lambda n: (-mine.get(n, 0), self._left[n], self._position[n])), []
        options = []
        for node, left in self._left.items():
            there = sorted(
                (j for j, n in self._staying.items() if n == node and self._wanted[j] < size),
                key=lambda j: (self._wanted[j], j),
            )
            gone: list[JobId] = []
            for other in there:
                if left + sum(self._wanted[j] for j in gone) >= size:
                    break
                gone.append(other)
            freed = sum(self._wanted[j] for j in gone)
            if left + freed >= size:
                options.append((freed, self._position[node], node, gone))
        if not options:
            return None, []
        _, _, node, gone = min(options, key=lambda o: o[:2])
        self._evict(gone)
        return node, gone

    def _put(self, job: JobId, counts: Counts) -> None:
        self._placed[job] = counts
        for node, count in counts.items():
            self._left[node] -= count

    def _evict(self, jobs: list[JobId]) -> None:
        for job in jobs:
            node = self._staying.pop(job)
            self._left[node] += self._wanted[job]
            del self._placed[job]
