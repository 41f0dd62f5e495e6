"""`ones bench search`: cost of a generation, and the gap to the optimum over time.

Times are CPU time, because the machine may be shared. The gap is the cost at the mean over 16
draws of remaining work, in percent above the exact optimum (min-plus dynamic programming; only
`seeded` rows start from it).

Two kinds of problem. "cold": Eq. 8 as printed, from a random start; few of the jobs should run.
"event": the problem of the default policy after an event: waiting jobs cost twice what they would
take, changes have a cost, and one job in a hundred was replaced. The exact and the greedy division
seed the population, so the gap is 0 by construction. `warm_gap_percent` is the gap without seeds
after the generations that the policy spends on an event. Memory includes the exact solver's.
States of real runs are in `run_states`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ones.lab.bench.search import reference
from ones.lab.processes import own_peak_mb, run_in_process
from ones.models.allocation import greedy, total
from ones.policies.ones.place.search import Search
from ones.policies.ones.score.problem import Problem, optimum

#: (GPUs, jobs, population)
CASES = ((16, 16, 16), (64, 64, 64), (256, 256, 256), (1_024, 1_024, 1_024), (10_240, 10_000, 128))
DRAWS, MOST_GPUS, NODE = 16, 16, 4
#: generations of the default policy after an event
SHIPPED_GENERATIONS = 5
#: maximum GPUs at which the reference implementation is timed
REFERENCE_GPUS = 256
_CLOCK = time.process_time


def bench_search(
    cases: tuple[tuple[int, int, int], ...] = CASES,
    *,
    progress: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """Two rows for each size, each in its own process; kernels are compiled before."""
    progress("compiling, if it is the first time")
    run_in_process(start_up)
    rows = []
    for gpus, jobs, population in cases:
        for seeded in (False, True):
            kind = "after an event, seeded" if seeded else "cold"
            progress(f"{jobs:,} jobs on {gpus:,} GPUs, {kind}")
            rows.append(run_in_process(_case, gpus, jobs, population, seeded))
    return rows


def example(gpus: int, jobs: int, *, seed: int = 1, waiting_charge: float = 0.0) -> Problem:
    """A problem with jobs of all sizes and sublinear speed, slower across nodes."""
    rng = np.random.default_rng(seed)
    sizes = np.arange(1, MOST_GPUS + 1)
    most = np.minimum(rng.integers(1, MOST_GPUS + 1, jobs), gpus)
    compute = rng.lognormal(-1.5, 0.6, (jobs, 1))
    talk = rng.uniform(0.01, 0.3, (jobs, 1)) * compute
    nodes = np.ceil(sizes / NODE)
    step = compute + talk * (1 - 1 / sizes) * (1 + 0.5 * (nodes > 1) + 0.1 * nodes)
    cost = np.zeros((jobs, MOST_GPUS + 1))
    cost[:, 1:] = step / 32  # c / X with 32 samples a step on each GPU
    cost[:, 0] = waiting_charge * cost[:, 1]
    done = rng.lognormal(10, 1.5, jobs)
    share = rng.beta(rng.uniform(1, 20, jobs), rng.uniform(1, 30, jobs), (DRAWS, jobs))
    return Problem(
        gpus=gpus,
        keys=np.arange(jobs),
        least=np.ones(jobs, np.int32),
        most=most.astype(np.int32),
        held=np.zeros(jobs, np.int32),
        processed=rng.exponential(1000, jobs),
        cost=cost,
        work=done * (1 / np.clip(share, 0.02, 0.999) - 1),
    )


def after_an_event(problem: Problem, held: NDArray[np.int32], *, seed: int = 2) -> Problem:
    """The problem after an event: one job in a hundred is new, changes cost 5 s per GPU at the mean
    work."""
    rng = np.random.default_rng(seed)
    jobs = len(problem.keys)
    changed = rng.permutation(jobs)[: max(1, jobs // 100)]
    keys, held, processed = problem.keys.copy(), held.copy(), problem.processed.copy()
    keys[changed] += jobs
    held[changed], processed[changed] = 0, 0.0
    extra = np.tile(5.0 * np.arange(problem.cost.shape[1]), (jobs, 1))
    extra[np.arange(jobs), held] = 0.0
    extra[held == 0] = 0.0
    return replace(
        problem,
        keys=keys,
        held=held,
        processed=processed,
        cost=problem.cost + extra / problem.mean_work[:, None],
        work=problem.work * rng.lognormal(0, 0.1, problem.work.shape),
    )


def gap_percent(problem: Problem, counts: NDArray[np.int32], best: NDArray[np.int32]) -> float:
    """Cost above the optimum in percent; infinite with idle GPUs that could be used."""
    if problem.use_all and counts.sum() < best.sum():
        return float("inf")
    table = problem.table(problem.mean_work)
    least = total(table, best)
    return round(100 * (total(table, counts) - least) / abs(least), 4)


def start_up() -> float:
    """Wall seconds to the first answer without numpy: numba, kernels, a generation, the DP."""
    began = time.perf_counter()
    problem = example(16, 16)
    search = Search(16, 1)
    search.refresh(problem)
    search.evolve(problem, 1)
    optimum(problem)
    return round(time.perf_counter() - began, 3)


def _case(gpus: int, jobs: int, population: int, seeded: bool) -> dict[str, Any]:
    started = start_up()
    problem = example(gpus, jobs, waiting_charge=2.0 if seeded else 0.0)
    search = Search(population, 1)
    warm_gap = None
    if seeded:
        search.refresh(problem)
        search.evolve(problem, SHIPPED_GENERATIONS)
        held = search.best(problem)
        problem = after_an_event(problem, held)
        warm = _copy(search)
        warm.refresh(problem)
        warm.evolve(problem, SHIPPED_GENERATIONS)
        warm_gap = gap_percent(problem, warm.best(problem), optimum(problem))
    began = _CLOCK()
    search.refresh(problem)
    refresh_ms = 1000 * (_CLOCK() - began)
    best = optimum(problem) if seeded else None
    table = problem.table(problem.mean_work)
    greedy_counts = greedy(table, problem.least, problem.most, gpus)
    if best is not None:
        search.add(best, problem)
        search.add(greedy_counts, problem)
    found, times = _evolve(search, problem, (0.1, 1.0))
    memory = own_peak_mb()  # in a cold row without the exact solver, which takes more
    best = optimum(problem) if best is None else best
    slow = _reference_ms(problem, population) if gpus <= REFERENCE_GPUS else None
    quick = float(np.median(times))
    return {
        "case": f"{gpus} GPUs, {jobs} jobs, {'after an event, seeded' if seeded else 'cold'}",
        "gpus": gpus,
        "jobs": jobs,
        "population": population,
        "seeded": seeded,
        "n": len(times),
        "ms_per_generation": round(quick, 3),
        "refresh_ms": round(refresh_ms, 3),
        "rival": "plain Python",
        "reference_ms_per_generation": None if slow is None else round(slow, 3),
        "ratio": None if slow is None else round(slow / quick, 1),
        "gap_percent_0_1s": gap_percent(problem, found[0], best),
        "gap_percent_1s": gap_percent(problem, found[1], best),
        "warm_gap_percent": warm_gap,
        "greedy_gap_percent": gap_percent(problem, greedy_counts, best),
        "annealing_gap_percent": gap_percent(problem, anneal(problem, 1.0), best),
        "annealing_seconds": 1.0,
        "startup_seconds": started,
        "peak_mb": memory,
    }


def _copy(search: Search) -> Search:
    other = Search(2, 0)
    other.load(search.save())
    return other


def _evolve(
    search: Search, problem: Problem, until: tuple[float, ...]
) -> tuple[list[NDArray[np.int32]], list[float]]:
    """The best after each of these CPU seconds, and milliseconds of every generation."""
    found, times = [], []
    spent = 0.0
    for limit in until:
        while spent < limit:
            began = _CLOCK()
            search.evolve(problem, 1)
            times.append(1000 * (_CLOCK() - began))
            spent += times[-1] / 1000
        found.append(search.best(problem))
    return found, times


def _reference_ms(problem: Problem, population: int) -> float:
    search = Search(population, 1, operators=reference)
    search.refresh(problem)
    _, times = _evolve(search, problem, (2.0,))
    return float(np.median(times))


def anneal(problem: Problem, seconds: float, *, seed: int = 1) -> NDArray[np.int32]:
    """Simulated annealing on the same cost, also compiled: moves GPUs from one job to another.

    It starts with the first jobs at their limits and cools geometrically over time.
    """
    from numba import njit

    moves = njit(cache=True, nogil=True)(_moves)
    table = problem.table(problem.mean_work)
    counts = np.zeros(len(table), np.int32)
    left = problem.gpus
    for job in np.flatnonzero(problem.most > 0):
        if left >= problem.least[job]:
            counts[job] = min(int(problem.most[job]), left)
            left -= int(counts[job])
    steps = np.abs(np.diff(table, axis=1))
    hot = float(steps.mean()) + 1e-9
    rng = np.random.default_rng(seed)
    limits = (problem.least, problem.most)
    moves(table, *limits, counts.copy(), hot, rng.random((1, 4)))
    best, cost = counts.copy(), total(table, counts)
    began = _CLOCK()
    while (share := (_CLOCK() - began) / seconds) < 1:
        moves(table, *limits, counts, hot * 1e-5**share, rng.random((2000, 4)))
        if total(table, counts) < cost:
            best, cost = counts.copy(), total(table, counts)
    return best


def _moves(
    table: NDArray[np.float64],
    least: NDArray[np.int32],
    most: NDArray[np.int32],
    counts: NDArray[np.int32],
    heat: float,
    random: NDArray[np.float64],
) -> None:
    for step in range(len(random)):
        giver = int(random[step, 0] * len(counts))
        taker = int(random[step, 1] * len(counts))
        room = min(counts[giver], most[taker] - counts[taker])
        if giver == taker or room <= 0:
            continue
        moved = 1 + int(random[step, 2] * room)
        less, more = counts[giver] - moved, counts[taker] + moved
        if more < least[taker] or 0 < less < least[giver]:
            continue
        worse = table[giver, less] - table[giver, counts[giver]]
        worse += table[taker, more] - table[taker, counts[taker]]
        if worse <= 0 or random[step, 3] < np.exp(-worse / heat):
            counts[giver], counts[taker] = less, more
