"""The operators in plain Python: the text that `kernels` is held equal to, name by name.

A candidate is a dict from job to GPUs, in the order of occurrence. The same seeds give
the same candidates as the kernels do, to the last bit of their costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ones.policies.ones.place.genome import Rows
from ones.policies.ones.place.operators import PAPER, SLOPE, Seeds, Tables
from ones.policies.ones.score.problem import Flags, Floats

Candidate = dict[int, int]

_MASK = 2**64 - 1


def numbers(seed: int) -> Iterator[int]:
    """splitmix64.

    >>> [hex(x) for x in islice(numbers(0), 2)]
    ['0xe220a8397b1dcdaf', '0x6e789e6aa1b965f4']
    """
    while True:
        seed = (seed + 0x9E3779B97F4A7C15) & _MASK
        yield mixed(seed)


def mixed(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def low(x: int) -> float:
    return (x & 0xFFFFFFFF) * 2.0**-32


def high(x: int) -> float:
    return (x >> 32) * 2.0**-32


class Repair:
    """Trim and fill, for one problem."""

    def __init__(self, t: Tables) -> None:
        self._t = t
        self._least: list[int] = t.least.tolist()
        self._most: list[int] = t.most.tolist()
        self._by_age: list[int] = t.by_age.tolist()
        self._growth: list[list[list[float]]] = t.growth.tolist()
        self._work: list[list[float]] = t.fill_work.tolist()
        self._grown: list[list[list[int]]] = t.grown.tolist()
        self._scores: list[list[list[float]]] = t.scores.tolist()
        self._orders = [
            [
                list(zip(costs, jobs, strict=True))[: t.runnable]
                for costs, jobs in zip(costs_, jobs_, strict=True)
            ]
            for costs_, jobs_ in zip(t.order_cost.tolist(), t.order.tolist(), strict=True)
        ]

    def __call__(
        self, c: Candidate, x: int, barred: frozenset[int] | set[int] = frozenset()
    ) -> Candidate:
        c = {job: min(n, self._most[job]) for job, n in c.items()}
        c = {job: n for job, n in c.items() if n >= self._least[job]}
        c = self._taken(c, sum(c.values()) - self._t.gpus)
        return self._filled(c, x, barred)

    def _taken(self, c: Candidate, needed: int) -> Candidate:
        for job in self._by_age:
            if needed > 0 and job in c:
                spare = min(c[job] - self._least[job], needed)
                c[job] -= spare
                needed -= spare
        for job in self._by_age:
            if needed > 0 and job in c:
                needed -= c.pop(job)
        return c

    def _filled(self, c: Candidate, x: int, barred: frozenset[int] | set[int]) -> Candidate:
        idle = self._t.gpus - sum(c.values())
        if idle == 0:
            return c
        rule = SLOPE if low(x) < self._t.slope_share else PAPER
        fill = int(high(x) * len(self._work))
        out = barred | c.keys()
        waiting = [entry for entry in self._orders[rule][fill] if entry[1] not in out]
        if rule == PAPER:
            for _, job in waiting:
                if self._least[job] <= idle:
                    c[job] = self._least[job]
                    idle -= c[job]
            waiting = []
        growing = [
            (self._growth_cost(rule, fill, job, n), job)
            for job, n in c.items()
            if n < self._most[job]
        ]
        heapify(growing)
        waiting.reverse()
        while idle > 0:
            while waiting and self._least[waiting[-1][1]] > idle:
                waiting.pop()
            starts = bool(waiting) and (not growing or waiting[-1][0] <= growing[0][0])
            if not starts and not growing:
                break
            if self._t.idle_charge == 0.0 and (waiting[-1] if starts else growing[0])[0] >= 0.0:
                break  # nothing that is left to do pays
            job = waiting.pop()[1] if starts else heappop(growing)[1]
            now = c.get(job, 0)
            whole = self._grown[rule][job][now]
            to = min(whole, now + idle)
            if self._t.idle_charge == 0.0 and to < whole and not self._pays(fill, job, now, to):
                continue  # the whole way would pay, a part of it does not
            c[job] = to
            idle -= to - now
            if c[job] < self._most[job]:
                heappush(growing, (self._growth_cost(rule, fill, job, c[job]), job))
        return c

    def _pays(self, fill: int, job: int, now: int, to: int) -> bool:
        gain = self._scores[job][to][1] - self._scores[job][now][1]
        return self._work[fill][job] * gain < 0.0

    def _growth_cost(self, rule: int, fill: int, job: int, now: int) -> float:
        return self._work[fill][job] * self._growth[rule][job][now]


def scatter(t: Tables, seeds: Seeds, rows: Rows) -> None:
    repair = Repair(t)
    runnable: list[int] = np.flatnonzero(t.most > 0).tolist()
    for row, seed in enumerate(seeds.tolist()):
        random = numbers(seed)
        c: Candidate = {}
        for x in islice(random, t.gpus if runnable else 0):
            job = runnable[int(high(x) * len(runnable))]
            c[job] = c.get(job, 0) + 1
        _write(rows, row, repair(c, next(random)))


def refresh(t: Tables, seeds: Seeds, rows: Rows) -> None:
    repair = Repair(t)
    for row, seed in enumerate(seeds.tolist()):
        _write(rows, row, repair(_read(rows, row), next(numbers(seed))))


def cross(a: Candidate, b: Candidate, coins: Iterable[int], gpus: int) -> list[Candidate]:
    """GPU by GPU: heads, the first child inherits from a and the second from b; tails, swapped."""
    children: list[Candidate] = [{}, {}]
    for from_a, from_b, coin in zip(_gpus(a, gpus), _gpus(b, gpus), coins, strict=False):
        for child, job in zip(
            children, (from_a, from_b) if coin else (from_b, from_a), strict=True
        ):
            if job is not None:
                child[job] = child.get(job, 0) + 1
    return children


def coins(random: Iterator[int]) -> Iterator[int]:
    for bits in random:
        for place in range(64):
            yield (bits >> place) & 1


def crossover(
    t: Tables, pairs: NDArray[np.int64], seeds: Seeds, rows: Rows, into: int, repair: bool
) -> None:
    repaired = Repair(t)
    for p, (seed, (a, b)) in enumerate(zip(seeds.tolist(), pairs.tolist(), strict=True)):
        random = numbers(seed)
        tossed = list(coins(islice(random, -(-t.gpus // 64))))
        children = cross(_read(rows, a), _read(rows, b), tossed, t.gpus)
        for i, child in enumerate(children):
            _write(rows, into + 2 * p + i, repaired(child, next(random)) if repair else child)


def mutate(
    t: Tables, parents: NDArray[np.int64], rates: Floats, seeds: Seeds, rows: Rows, into: int
) -> None:
    repair = Repair(t)
    for p, (parent, rate, seed) in enumerate(
        zip(parents.tolist(), rates.tolist(), seeds.tolist(), strict=True)
    ):
        random = numbers(seed)
        c = _read(rows, parent)
        if rate < 0:
            rate = min(max(t.mutated_jobs / max(len(c), 1), t.least_rate), t.most_rate)  # noqa: PLW2901
        barred = set()
        for job, x in zip(list(c), random, strict=False):
            if low(x) < rate:
                del c[job]
                if high(x) < t.left_out:
                    barred.add(job)
        _write(rows, into + p, repair(c, next(random), barred))


def score(t: Tables, rows: Rows, ranks: Floats, single: Floats, marks: Seeds) -> None:
    scores = t.scores.tolist()
    draws = t.draws.T.tolist()
    for row in range(len(ranks)):
        c = _read(rows, row)
        idle = t.idle_charge * max(0, t.usable - sum(c.values()))
        rank, mark = 0.0, 0
        for job, n in c.items():
            rank += scores[job][n][0]
            mark = (mark + mixed((job << 32) + n + 1)) & _MASK
        ranks[row] = rank + idle
        marks[row] = mark
        for d, work in enumerate(draws):
            total = 0.0
            for job, n in c.items():
                total += work[job] * scores[job][n][1]
            single[row, d] = total + idle


def winners(single: Floats, free: Flags, wanted: int) -> NDArray[np.int64]:
    chosen: list[int] = []
    draws = single.shape[1]
    for d in range(draws):
        share = wanted // draws + int(d < wanted % draws)
        order = np.argsort(single[:, d], kind="stable")
        mine = [row for row in order.tolist() if free[row]][:share]
        free[mine] = False
        chosen += mine
    return np.array(chosen, np.int64)


def _read(rows: Rows, at: int) -> Candidate:
    n = rows.length[at]
    return dict(zip(rows.jobs[at, :n].tolist(), rows.counts[at, :n].tolist(), strict=True))


def _write(rows: Rows, at: int, c: Candidate) -> None:
    rows.length[at] = len(c)
    rows.jobs[at, : len(c)] = list(c)
    rows.counts[at, : len(c)] = list(c.values())


def _gpus(c: Candidate, gpus: int) -> Iterator[int | None]:
    """The job on each GPU."""
    for job, n in c.items():
        for _ in range(n):
            yield job
    for _ in range(gpus - sum(c.values())):
        yield None
