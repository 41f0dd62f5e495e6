"""The population of the genetic search, kept between rounds, and one round of the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from ones.policies.pollux.problem import AllocationProblem, Counts, Floats, Ints

#: limit of an owner without one
NO_LIMIT = 1 << 30


class GeneticSearch:
    """Starts each round from the members of the last one; jobs and nodes may have changed."""

    def __init__(
        self, members: int, generations: int, seed: int, *, operators: ModuleType | None = None
    ) -> None:
        self._size, self._generations, self._seed = members, generations, seed
        self._operators = operators
        self._jobs: list[str] = []
        self._nodes: list[str] = []
        self._members: Counts = np.zeros((0, 0, 0), np.int16)
        self._rounds = 0

    def round(
        self, problem: AllocationProblem, jobs: Sequence[str], nodes: Sequence[str]
    ) -> tuple[Counts, float]:
        """The best candidate after all generations, and its cost."""
        if self._operators is None:
            from ones.policies.pollux import kernels

            operators: Any = kernels
        else:
            operators = self._operators
        self._rounds += 1
        rng = np.random.default_rng([self._seed, self._rounds])
        size = self._size
        members = np.zeros((2 * size, *problem.current.shape), np.int16)
        first = np.zeros(size, np.uint64)
        inherited = self._inherited(jobs, nodes)
        members[0] = problem.current  # the current state is always a member
        if len(inherited):
            members[1:size] = inherited[: size - 1]
        else:
            members[1:size] = problem.current
            first[1:] = rng.integers(1, 2**64, size - 1, dtype=np.uint64)
        costs = np.zeros(2 * size)
        marks = np.zeros(2 * size, np.uint64)
        operators.begin(problem, members, first, costs, marks)
        seeds = rng.integers(0, 2**64, (self._generations, size // 2), dtype=np.uint64)
        operators.evolve(problem, members, costs, marks, seeds)
        self._jobs, self._nodes = list(jobs), list(nodes)
        best = int(np.argmin(costs[:size]))
        self._members = members[:size].copy()
        return self._members[best], float(costs[best])

    def _inherited(self, jobs: Sequence[str], nodes: Sequence[str]) -> Counts:
        """The members of the last round, for these jobs and nodes; new ones are empty."""
        row = {job: i for i, job in enumerate(self._jobs)}
        column = {node: i for i, node in enumerate(self._nodes)}
        members = np.zeros((len(self._members), len(jobs), len(nodes)), np.int16)
        known_jobs = [i for i, job in enumerate(jobs) if job in row]
        known_nodes = [i for i, node in enumerate(nodes) if node in column]
        if len(members) and known_jobs and known_nodes:
            old_jobs = [row[jobs[i]] for i in known_jobs]
            old_nodes = [column[nodes[i]] for i in known_nodes]
            old = self._members[np.ix_(range(len(members)), old_jobs, old_nodes)]
            members[np.ix_(range(len(members)), known_jobs, known_nodes)] = old
        return members

    def save(self) -> dict[str, Any]:
        """The non-zero entries as a flat list: most are zero."""
        where = np.flatnonzero(self._members)
        return {
            "rounds": self._rounds,
            "jobs": self._jobs,
            "nodes": self._nodes,
            "members": len(self._members),
            "where": where.tolist(),
            "counts": self._members.ravel()[where].tolist(),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._rounds = int(saved["rounds"])
        self._jobs, self._nodes = list(saved["jobs"]), list(saved["nodes"])
        shape = (int(saved["members"]), len(self._jobs), len(self._nodes))
        self._members = np.zeros(shape, np.int16)
        self._members.ravel()[np.array(saved["where"], np.int64)] = saved["counts"]


def divide(
    table: Floats,
    least: Ints,
    most: Ints,
    gpus: int,
    *,
    per_node: int = 4,
    members: int = 100,
    generations: int = 100,
    seed: int = 1,
) -> Ints:
    """Pollux's search on any cost table (jobs by GPUs, as in `models.allocation`).

    Returns the GPUs of each job. One job per network card; several nodes have no additional cost.
    """
    jobs, width = table.shape
    nodes = -(-gpus // per_node)
    capacity = np.full(nodes, per_node, np.int32)
    capacity[-1] = gpus - per_node * (nodes - 1)
    problem = AllocationProblem(
        terms=np.stack([table, table], axis=1).astype(np.float64),
        stay=np.ascontiguousarray(table[:, 0], np.float64),
        least=np.ascontiguousarray(least, np.int32),
        most=np.minimum(most, width - 1).astype(np.int32),
        current=np.zeros((jobs, nodes), np.int16),
        capacity=capacity,
        closed=np.zeros(nodes, np.bool_),
        owner=np.zeros(jobs, np.int32),
        room=np.full(1, NO_LIMIT, np.int32),
        most_nodes=nodes,
    )
    search = GeneticSearch(members, generations, seed)
    names = [str(i) for i in range(max(jobs, nodes))]
    best, _ = search.round(problem, names[:jobs], names[:nodes])
    sizes: Ints = best.sum(axis=1).astype(np.int32)
    return sizes
