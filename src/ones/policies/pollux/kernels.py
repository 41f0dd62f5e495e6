"""The genetic search, compiled.

Tests compare it with a reference in plain Python. One file, because a cached kernel does not notice
changes in another one. Random numbers are splitmix64, seeded for each pair of parents, so that
results depend on seeds only.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ones.policies.pollux.problem import (
    EMPTIED,
    LEAKY,
    RESET,
    AllocationProblem,
    Counts,
    Flags,
    Floats,
    Ints,
    Seeds,
)

_LOW = np.uint64(0xFFFFFFFF)
_UNIT = 2.0**-32


@njit(cache=True, nogil=True)
def _mixed(z: np.uint64) -> np.uint64:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def _next(state: Seeds) -> np.uint64:
    """The next number of splitmix64; `state` is an array of one."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    return _mixed(state[0])


@njit(cache=True, nogil=True)
def _low(x: np.uint64) -> float:
    return float(x & _LOW) * _UNIT


@njit(cache=True, nogil=True)
def _high(x: np.uint64) -> float:
    return float(x >> np.uint64(32)) * _UNIT


@njit(cache=True, nogil=True)
def mutate(rows: Counts, current: Counts, capacity: Ints, state: Seeds) -> None:
    """Resets rows or empties entries; then adds GPUs on nodes with free ones."""
    jobs, nodes = rows.shape
    for job in range(jobs):
        x = _next(state)
        if _low(x) < RESET:
            for node in range(nodes):
                rows[job, node] = current[job, node]
        if _high(x) < LEAKY:
            for node in range(nodes):
                if rows[job, node] > 0 and _low(_next(state)) < EMPTIED:
                    rows[job, node] = 0
    for node in range(nodes):
        used, there = 0, 0
        for job in range(jobs):
            used += rows[job, node]
            there += int(rows[job, node] > 0)
        if used >= capacity[node]:
            continue
        any_job = 1.0 / jobs
        one_there = 1.0 / max(there, 1)
        one_there = any_job + one_there - any_job * one_there
        for job in range(jobs):
            x = _next(state)
            count = rows[job, node]
            if _low(x) < (one_there if count > 0 else any_job) and count <= capacity[node]:
                rows[job, node] = count + int(_high(x) * (capacity[node] - count + 1))


@njit(cache=True, nogil=True)
def _trim(row: Counts, most: int, most_nodes: int, order: Ints, state: Seeds) -> None:
    """Reduces a row to the limits of its job, in a random order of nodes."""
    held = 0
    for node in range(len(row)):
        if row[node] > 0:
            order[held] = node
            held += 1
    for i in range(held - 1, 0, -1):
        other = int(_low(_next(state)) * (i + 1))
        order[i], order[other] = order[other], order[i]
    left = most
    for i in range(held):
        node = order[i]
        row[node] = min(row[node], left) if i < most_nodes else 0
        left -= row[node]


@njit(cache=True, nogil=True)
def _extent(row: Counts) -> tuple[int, int]:
    """GPUs and nodes of a job."""
    total, spread = 0, 0
    for count in row:
        total += count
        spread += int(count > 0)
    return total, spread


@njit(cache=True, nogil=True)
def _avoid_interference(rows: Counts, card: Flags) -> None:
    """At most one job of several nodes on each node's network card: the first one stays."""
    for row in rows:
        if _extent(row)[1] > 1:
            for node in range(len(row)):
                if row[node] > 0:
                    if card[node]:
                        row[node] = 0
                    card[node] = True


@njit(cache=True, nogil=True)
def _fit_in(row: Counts, left: Ints, room: int) -> int:
    """Reduces a row to the free GPUs of nodes and the owner's limit; returns its GPUs."""
    total = 0
    for node in range(len(row)):
        row[node] = min(row[node], left[node])
        left[node] -= row[node]
        total += row[node]
    for node in range(len(row) - 1, -1, -1):
        if total <= room:
            break
        less = min(int(row[node]), total - room)
        row[node] -= less
        total -= less
    return total


@njit(cache=True, nogil=True)
def repair(problem: AllocationProblem, rows: Counts, order: Ints, state: Seeds) -> None:
    """Applies all limits: one job per network card; jobs; nodes; owners; minimum sizes."""
    left = problem.capacity.copy()
    room = problem.room.copy()
    _avoid_interference(rows, problem.closed.copy())
    for job in range(len(rows)):
        row = rows[job]
        total, spread = _extent(row)
        if total > problem.most[job] or spread > problem.most_nodes:
            _trim(row, problem.most[job], problem.most_nodes, order, state)
        total = _fit_in(row, left, room[problem.owner[job]])
        if total < problem.least[job]:
            row[:] = 0
        else:
            room[problem.owner[job]] -= total


@njit(cache=True, nogil=True)
def appraise(problem: AllocationProblem, rows: Counts) -> tuple[float, np.uint64]:
    """The cost of a candidate, and a hash to detect equal ones."""
    jobs, nodes = rows.shape
    cost = 0.0
    mark = np.uint64(0)
    for job in range(jobs):
        total, spread = 0, 0
        same = True
        for node in range(nodes):
            count = rows[job, node]
            same = same and count == problem.current[job, node]
            if count > 0:
                total += count
                spread += 1
                cell = np.uint64(job * nodes + node + 1)
                mark += _mixed((cell << np.uint64(16)) + np.uint64(count))
        cost += problem.stay[job] if same else problem.terms[job, int(spread > 1), total]
    return cost, mark


@njit(cache=True, nogil=True)
def begin(
    problem: AllocationProblem, members: Counts, seeds: Seeds, costs: Floats, marks: Seeds
) -> None:
    """Repairs and appraises every member; a seed above 0 requests a mutation first."""
    order = np.zeros(members.shape[2], np.int32)
    state = np.zeros(1, np.uint64)
    for i in range(len(seeds)):
        state[0] = seeds[i]
        if seeds[i] > 0:
            mutate(members[i], problem.current, problem.capacity, state)
        repair(problem, members[i], order, state)
        costs[i], marks[i] = appraise(problem, members[i])


@njit(cache=True, nogil=True)
def _parent(costs: Floats, size: int, x: np.uint64) -> int:
    """The better of two."""
    one, other = int(_low(x) * size), int(_high(x) * size)
    return one if costs[one] <= costs[other] else other


@njit(cache=True, nogil=True)
def _survivors(costs: Floats, marks: Seeds, size: int) -> Ints:
    """The best members, each once; copies only if there are not enough others."""
    ranked = np.argsort(costs, kind="mergesort")
    chosen = np.zeros(size, np.int32)
    copies = np.zeros(len(costs), np.int32)
    n, m = 0, 0
    for i in ranked:
        copy = False
        back = n - 1
        while back >= 0 and costs[chosen[back]] == costs[i]:
            if marks[chosen[back]] == marks[i]:
                copy = True
                break
            back -= 1
        if copy:
            copies[m] = i
            m += 1
        else:
            chosen[n] = i
            n += 1
            if n == size:
                break
    for i in range(size - n):
        chosen[n + i] = copies[i]
    return chosen


@njit(cache=True, nogil=True)
def evolve(
    problem: AllocationProblem, members: Counts, costs: Floats, marks: Seeds, seeds: Seeds
) -> None:
    """Runs generations of as many children as members; `seeds` has a row for each.

    The first half of the arrays holds the members, the second half is working space.
    """
    size = len(members) // 2
    jobs, nodes = members.shape[1:]
    order = np.zeros(nodes, np.int32)
    state = np.zeros(1, np.uint64)
    for generation in range(len(seeds)):
        for pair in range(size // 2):
            state[0] = seeds[generation, pair]
            one = _parent(costs, size, _next(state))
            other = _parent(costs, size, _next(state))
            point = int(_low(_next(state)) * jobs)
            child = size + 2 * pair
            for job in range(jobs):
                first, second = (other, one) if job < point else (one, other)
                for node in range(nodes):
                    members[child, job, node] = members[first, job, node]
                    members[child + 1, job, node] = members[second, job, node]
            for i in range(child, child + 2):
                mutate(members[i], problem.current, problem.capacity, state)
                repair(problem, members[i], order, state)
                costs[i], marks[i] = appraise(problem, members[i])
        chosen = _survivors(costs, marks, size)
        members[:size] = members[chosen]
        costs[:size] = costs[chosen]
        marks[:size] = marks[chosen]
