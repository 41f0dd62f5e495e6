"""The genetic search, to be read: what `kernels` does, in plain Python, on the same arrays."""

from __future__ import annotations

import numpy as np

from ones.policies.pollux.problem import (
    EMPTIED,
    LEAKY,
    RESET,
    AllocationProblem,
    Counts,
    Floats,
    Seeds,
)

_MASK = (1 << 64) - 1


class Stream:
    """splitmix64."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def next(self) -> tuple[float, float]:
        """Two numbers in [0, 1)."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        x = mixed(self._state)
        return (x & 0xFFFFFFFF) * 2.0**-32, (x >> 32) * 2.0**-32


def mixed(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def mutate(problem: AllocationProblem, rows: Counts, stream: Stream) -> None:
    jobs, nodes = rows.shape
    for job in range(jobs):
        reset, leaky = stream.next()
        if reset < RESET:
            rows[job] = problem.current[job]
        if leaky < LEAKY:
            for node in np.flatnonzero(rows[job]).tolist():
                if stream.next()[0] < EMPTIED:
                    rows[job, node] = 0
    for node in range(nodes):
        capacity = int(problem.capacity[node])
        before = rows[:, node].tolist()
        if sum(before) >= capacity:
            continue
        any_job = 1.0 / jobs
        there = 1.0 / max(sum(count > 0 for count in before), 1)
        for job in range(jobs):
            chance, value = stream.next()
            limit = any_job + there - any_job * there if before[job] else any_job
            if chance < limit and before[job] <= capacity:
                rows[job, node] += int(value * (capacity - before[job] + 1))


def repair(problem: AllocationProblem, rows: Counts, stream: Stream) -> None:
    # at most one job over several nodes on each node's network card
    card = problem.closed.copy()
    for row in rows:
        nodes = np.flatnonzero(row)
        if len(nodes) > 1:
            row[nodes[card[nodes]]] = 0
            card[nodes] = True
    # no more GPUs and nodes than a job may have
    for job, row in enumerate(rows):
        if row.sum() > problem.most[job] or np.count_nonzero(row) > problem.most_nodes:
            order = np.flatnonzero(row).tolist()
            for i in range(len(order) - 1, 0, -1):
                other = int(stream.next()[0] * (i + 1))
                order[i], order[other] = order[other], order[i]
            left = int(problem.most[job])
            for i, node in enumerate(order):
                row[node] = min(row[node], left) if i < problem.most_nodes else 0
                left -= row[node]
    # within the capacity of nodes and the limits of owners; no job below its minimum
    left_on, room = problem.capacity.copy(), problem.room.copy()
    for job, row in enumerate(rows):
        np.minimum(row, left_on, out=row, casting="unsafe")
        left_on -= row
        owner = problem.owner[job]
        for node in range(len(row) - 1, -1, -1):
            row[node] -= min(int(row[node]), max(0, int(row.sum()) - int(room[owner])))
        if row.sum() < problem.least[job]:
            row[:] = 0
        room[owner] -= row.sum()


def appraise(problem: AllocationProblem, rows: Counts) -> tuple[float, int]:
    jobs, nodes = rows.shape
    cost, mark = 0.0, 0
    for job in range(jobs):
        row = rows[job]
        for node in np.flatnonzero(row).tolist():
            cell = job * nodes + node + 1
            mark = (mark + mixed((cell << 16) + int(row[node]))) & _MASK
        if np.array_equal(row, problem.current[job]):
            cost += problem.stay[job]
        else:
            cost += problem.terms[job, int(np.count_nonzero(row) > 1), row.sum()]
    return cost, mark


def begin(
    problem: AllocationProblem, members: Counts, seeds: Seeds, costs: Floats, marks: Seeds
) -> None:
    for i, seed in enumerate(seeds.tolist()):
        stream = Stream(seed)
        if seed > 0:
            mutate(problem, members[i], stream)
        repair(problem, members[i], stream)
        costs[i], marks[i] = appraise(problem, members[i])


def evolve(
    problem: AllocationProblem, members: Counts, costs: Floats, marks: Seeds, seeds: Seeds
) -> None:
    size = len(members) // 2

    def parent(stream: Stream) -> int:
        one, other = (int(x * size) for x in stream.next())
        return one if costs[one] <= costs[other] else other

    for generation in seeds.tolist():
        for pair, seed in enumerate(generation):
            stream = Stream(seed)
            one, other = parent(stream), parent(stream)
            point = int(stream.next()[0] * members.shape[1])
            child = size + 2 * pair
            members[child], members[child + 1] = members[one], members[other]
            members[child, :point] = members[other, :point]
            members[child + 1, :point] = members[one, :point]
            for i in (child, child + 1):
                mutate(problem, members[i], stream)
                repair(problem, members[i], stream)
                costs[i], marks[i] = appraise(problem, members[i])
        chosen = survivors(costs, marks, size)
        members[:size], costs[:size], marks[:size] = members[chosen], costs[chosen], marks[chosen]


def survivors(costs: Floats, marks: Seeds, size: int) -> list[int]:
    """The best, each once; copies only if there are not enough others."""
    once: dict[tuple[float, int], int] = {}
    copies = []
    for i in sorted(range(len(costs)), key=lambda i: (costs[i], i)):
        if once.setdefault((float(costs[i]), int(marks[i])), i) != i:
            copies.append(i)
        if len(once) == size:
            break
    return [*once.values(), *copies][:size]
