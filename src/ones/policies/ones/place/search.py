"""The evolutionary search of §3.2 over candidate schedules.

    refresh: adapts the population to the present jobs, after an event;
    evolve: crossover, mutation and reorder make 3K candidates from K, the best K remain.

Callers limit generations, not time, so that a run is the same on every machine. The compiled
operators are loaded at the first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ones.models.allocation import next_sizes, total
from ones.policies.ones.place import genome, operators
from ones.policies.ones.place.genome import Rows
from ones.policies.ones.place.operators import Seeds, Tables
from ones.policies.ones.score.problem import Flags, Floats, Ints, Problem

#: range of the share of jobs that a restart preempts
RESTART_RATES = (0.1, 1.0)
THETA = -1.0  # marks the default rate in the kernels
#: share of the first population that is filled from an empty cluster;
#: the others start from a random job on every GPU
EMPTY_STARTS = 0.25
#: generations without improvement after which half of the members are restarted
RESTART_AFTER = 4


class Operators(Protocol):
    """The operators of `kernels` and `reference`."""

    def scatter(self, t: Tables, seeds: Seeds, rows: Rows) -> None: ...
    def refresh(self, t: Tables, seeds: Seeds, rows: Rows) -> None: ...
    def crossover(
        self,
        t: Tables,
        pairs: NDArray[np.int64],
        seeds: Seeds,
        rows: Rows,
        into: int,
        repair: bool,
    ) -> None: ...
    def mutate(
        self,
        t: Tables,
        parents: NDArray[np.int64],
        rates: Floats,
        seeds: Seeds,
        rows: Rows,
        into: int,
    ) -> None: ...
    def score(self, t: Tables, rows: Rows, ranks: Floats, single: Floats, marks: Seeds) -> None: ...
    def winners(self, single: Floats, free: Flags, wanted: int) -> NDArray[np.int64]: ...


class Search:
    """K candidate schedules. Same seed, same calls: same result.

    Candidates are ranked by the mean over draws; half of the population is kept for being best in
    single draws.

    The best member and the incumbent (what the jobs hold now, refreshed) are never
    dropped, so at fixed draws the best never gets worse between two refreshes.
    """

    def __init__(
        self,
        population: int,
        seed: int,
        *,
        operators: Operators | None = None,
    ) -> None:
        if population < 2:
            raise ValueError(f"a population of {population}: the best and the incumbent need two")
        self.stalled = 0  # generations without improvement
        self._size = population
        self._operators = operators
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._rows: Rows | None = None  # the first K are the population, then its children
        self._incumbent = 0
        self._frame = ""  # of the problem that the rows fit
        self._keys = np.zeros(0, np.int64)
        self._best = np.inf
        self._prepared: tuple[Problem, Tables] | None = None

    def refresh(self, problem: Problem) -> None:
        """Adapts the population to the problem; the first call creates it."""
        t = self._tables(problem)
        runs = min(len(problem.keys), problem.gpus)
        if self._rows is None:
            self._rows = self._first_population(t, runs)
        elif self._rows.jobs.shape[1] == runs and np.array_equal(self._keys, problem.keys):
            self._ops.refresh(t, self._seeds(self._size), self._rows)
        else:
            population = Rows(*(field[: self._size] for field in self._rows))
            before = genome.reindex(population, self._keys, problem.keys)
            self._ops.refresh(t, self._seeds(self._size), before)
            self._rows = genome.allocate_rows(4 * self._size, runs)
            genome.copy_rows(before, np.arange(self._size), self._rows)
        if problem.frame != self._frame:
            self.stalled = 0
        self._frame, self._keys = problem.frame, problem.keys
        self._incumbent = self._size - 1
        self._put(problem, problem.held, self._incumbent)

    def evolve(self, problem: Problem, generations: int) -> None:
        """Evolves the population, after a refresh if the problem has other jobs or limits."""
        rows = self._ready(problem)
        t = self._tables(problem)
        self._best = float(self._ranks(t).min())
        for _ in range(generations):
            self._offspring(t, rows)
            self._select(t, rows)

    def best(self, problem: Problem) -> Ints:
        """Returns the GPUs of each job in the best member."""
        return self.ranked(problem, 1)[0]

    def ranked(self, problem: Problem, most: int) -> list[Ints]:
        """Returns the GPUs of each job in the best members, the best first."""
        rows = self._ready(problem)
        # the tables of the operators would cost more than this for new draws
        jobs, counts, length = (field[: self._size] for field in rows)
        table = problem.table(problem.mean_work)
        counts = np.where(np.arange(counts.shape[1]) < length[:, None], counts, 0)
        ranks = (table - table[:, :1])[jobs, counts].sum(axis=1)
        idle = problem.usable - counts.sum(axis=1)
        if idle.any():
            ranks += problem.idle_charge() * idle
        order = np.argsort(ranks, kind="stable")[:most].tolist()
        return [genome.counts_of(rows, row, len(problem.keys)) for row in order]

    def add(self, counts: Ints, problem: Problem) -> None:
        """Repairs a candidate and replaces the worst member with it."""
        self._ready(problem)
        ranks = self._ranks(self._tables(problem))
        ranks[self._incumbent] = -np.inf
        self._put(problem, counts, int(np.argmax(ranks)))

    def cost(self, problem: Problem, counts: Ints) -> float:
        """Returns the cost by which candidates are ranked, including idle usable GPUs."""
        idle = max(0, problem.usable - int(counts.sum()))
        charge = problem.idle_charge() * idle if idle else 0.0
        return total(problem.table(problem.mean_work), counts) + charge

    def save(self) -> dict[str, Any]:
        """Returns the state as plain JSON values."""
        members: list[list[list[int]]] = []
        if self._rows is not None:
            for jobs, counts, n in zip(*(field[: self._size] for field in self._rows), strict=True):
                members.append([jobs[:n].tolist(), counts[:n].tolist()])
        return {
            "size": self._size,
            "runs": 0 if self._rows is None else self._rows.jobs.shape[1],
            "members": members,
            "keys": self._keys.tolist(),
            "incumbent": self._incumbent,
            "stalled": self.stalled,
            "frame": self._frame,
            "rng": self._rng.bit_generator.state,
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restores a saved state, including the size of the population."""
        self._size = int(saved["size"])
        self._keys = np.array(saved["keys"], np.int64)
        self._incumbent = int(saved["incumbent"])
        self.stalled = int(saved["stalled"])
        self._frame = str(saved["frame"])
        self._rng.bit_generator.state = saved["rng"]
        self._rows = None
        if saved["members"]:
            self._rows = genome.allocate_rows(4 * self._size, int(saved["runs"]))
            for row, (jobs, counts) in enumerate(saved["members"]):
                self._rows.length[row] = len(jobs)
                self._rows.jobs[row, : len(jobs)] = jobs
                self._rows.counts[row, : len(jobs)] = counts

    # one generation

    def _offspring(self, t: Tables, rows: Rows) -> None:
        """Writes the children of K pairs and K mutants behind the K members."""
        size = self._size
        pairs = self._rng.integers(0, size, (size, 2))
        self._ops.crossover(t, pairs, self._seeds(size), rows, size, True)
        parents = self._rng.integers(0, size, size)
        rates = np.full(size, THETA)
        self._ops.mutate(t, parents, rates, self._seeds(size), rows, 3 * size)

    def _select(self, t: Tables, rows: Rows) -> None:
        ranks, single, marks = self._scores(t, 4 * self._size)
        kept = self._survivors(ranks, single, marks)
        best = float(ranks[kept[0]])
        self.stalled = 0 if best < self._best - 1e-12 * abs(self._best) else self.stalled + 1
        self._best = best
        genome.copy_rows(rows, kept, rows)
        self._restart(t, rows, len(kept))

    def _survivors(self, ranks: Floats, single: Floats, marks: Seeds) -> NDArray[np.int64]:
        """Returns the candidates of the next population, the best one first."""
        order = np.argsort(ranks, kind="stable")
        # all members differ
        _, first, which = np.unique(marks, return_index=True, return_inverse=True)
        new = np.zeros(len(ranks), np.bool_)
        new[first] = True
        order = order[new[order]]
        incumbent = int(first[which[self._incumbent]])
        by_draw = self._size // 2 if single.shape[1] else 0
        kept = order[: self._size - by_draw]
        rest = order[len(kept) :]
        if by_draw and len(rest):
            free = np.zeros(len(ranks), np.bool_)
            free[rest] = True
            kept = np.concatenate([kept, self._ops.winners(single, free, by_draw)])
        self._incumbent = 0
        if kept[0] != incumbent:
            others = kept[kept != incumbent]
            kept = np.concatenate([others[:1], [incumbent], others[1:]])[: self._size]
            self._incumbent = 1
        return kept

    def _restart(self, t: Tables, rows: Rows, kept: int) -> None:
        """Fills the population up; replaces half of it when it has stalled.

        A restarted member is a copy of another one with many jobs preempted.
        """
        if self.stalled and self.stalled % RESTART_AFTER == 0:
            kept = min(kept, self._size - self._size // 2)
        start = max(kept, min(2, self._size))
        missing = self._size - start
        if missing > 0:
            parents = self._rng.integers(0, kept, missing)
            rates = self._rng.uniform(*RESTART_RATES, missing)
            self._ops.mutate(t, parents, rates, self._seeds(missing), rows, start)

    # helpers

    def _first_population(self, t: Tables, runs: int) -> Rows:
        rows = genome.allocate_rows(4 * self._size, runs)
        empty = int(EMPTY_STARTS * self._size)
        self._ops.refresh(t, self._seeds(empty), rows)
        others = Rows(*(field[empty:] for field in rows))
        self._ops.scatter(t, self._seeds(self._size - empty), others)
        return rows

    @property
    def _ops(self) -> Operators:
        if self._operators is None:
            from ones.policies.ones.place import kernels

            self._operators = kernels
        return self._operators

    def _seeds(self, n: int) -> Seeds:
        return self._rng.integers(0, 2**64, n, np.uint64)

    def _ready(self, problem: Problem) -> Rows:
        if self._rows is None or problem.frame != self._frame:
            self.refresh(problem)
        assert self._rows is not None
        return self._rows

    def _tables(self, problem: Problem) -> Tables:
        """Returns the tables of a problem; cached, since calls mostly repeat the problem."""
        if self._prepared is None or self._prepared[0] is not problem:
            self._prepared = (problem, operators.tables(problem, next_sizes=next_sizes))
        return self._prepared[1]

    def _scores(self, t: Tables, n: int) -> tuple[Floats, Floats, Seeds]:
        assert self._rows is not None
        ranks, single = np.empty(n), np.empty((n, t.draws.shape[1]))
        marks = np.empty(n, np.uint64)
        self._ops.score(t, self._rows, ranks, single, marks)
        return ranks, single, marks

    def _ranks(self, t: Tables) -> Floats:
        return self._scores(t, self._size)[0]

    def _put(self, problem: Problem, counts: Ints, at: int) -> None:
        """Repairs these counts and writes them to a row."""
        assert self._rows is not None
        row = genome.allocate_rows(1, len(problem.keys))
        genome.write(row, 0, counts)
        self._ops.refresh(self._tables(problem), self._seeds(1), row)
        genome.copy_rows(row, np.zeros(1, np.int64), self._rows, at)
