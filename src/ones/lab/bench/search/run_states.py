"""Part of `ones bench search`: the search on states of real runs, with and without seeds.

A run of `ones` on the paper's workload is inspected at every n-th problem, after the policy has
spent on it what it spends on every event: a warm population, and the default generations.

Without seeds, the gap is that of the best member to the exact division of the same cost. With
seeds it is 0 by construction. Then the question is what the exact division does not see: real
GPUs, and the speed of each job on the nodes that it spans. Relative to the exact division,
`added_percent` is the gain of the deployed candidate, `could_add_percent` that of the best
member, `fitted_percent` that of new sizes for badly placed jobs, and `deployed_percent` that of
the policy, which fits the best of some members.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ones.core.cluster import Cluster
from ones.core.view import View
from ones.lab.bench.search.benchmark import anneal, gap_percent, start_up
from ones.lab.processes import own_peak_mb, run_in_process
from ones.models.allocation import greedy
from ones.policies.ones.place.placement_score import PlacementScore, place_jobs
from ones.policies.ones.place.search import Search
from ones.policies.ones.place.size_refinement import refine_sizes, within_quotas
from ones.policies.ones.policy import CANDIDATES, Ones
from ones.policies.ones.score.problem import Problem, optimum
from ones.policies.ones.score.problem_builder import PosedProblem
from ones.policies.pollux.search import divide
from ones.runlog import Entry
from ones.sim import Simulator
from ones.workload import generate

#: (GPUs, jobs, seconds between two of them)
CASES = ((64, 50, 12.0), (256, 200, 3.0))
EVERY, STATES = 25, 12  # every n-th problem, and how many of them
#: problems with fewer jobs are too easy
FEWEST_JOBS = 4
#: states for slow rivals, and seconds of annealing
FEW, ANNEALING_SECONDS = 3, 0.3
SEED = 1
_CLOCK = time.process_time


class _EnoughError(Exception):
    """All states have been inspected."""


@dataclass(slots=True)
class StateResults:
    """The findings in each state."""

    problems: list[Problem] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    same: list[bool] = field(default_factory=list)  # the exact division was deployed
    added: list[float] = field(default_factory=list)
    could_add: list[float] = field(default_factory=list)
    fitted: list[float] = field(default_factory=list)
    evolved: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # of a generation, ms


class _InspectedPolicy(Ones):
    """The unchanged policy, inspected after every n-th search."""

    results: StateResults
    inspected_problems = 0
    seeded = True  # the exact division joins the population

    def _seed_search(self, search: Search, posed: PosedProblem) -> None:
        if self.seeded:
            super()._seed_search(search, posed)
        else:
            search.refresh(posed.problem)

    def _evolve(self, view: View, generations: int) -> None:
        began = _CLOCK()
        super()._evolve(view, generations)
        spent = _CLOCK() - began
        posed = self._posed_problem(view) if self._may_update(view) else None
        if posed is None or len(posed.jobs) < FEWEST_JOBS or self._search is None:
            return
        self.inspected_problems += 1
        if self.inspected_problems % EVERY == 0:
            self._inspect(view, posed, self._search)
            self.results.times.append(1000 * spent / max(1, generations))

    def _inspect(self, view: View, posed: PosedProblem, search: Search) -> None:
        problem = posed.problem
        best, found = optimum(problem), search.best(problem)
        self.results.problems.append(problem)
        self.results.gaps.append(gap_percent(problem, found, best))
        self.results.same.append(bool((found == best).all()))
        speeds = self._learned.known.speeds
        score = PlacementScore(view, posed, speeds)

        def value_of(counts: NDArray[np.int32]) -> float:
            sizes = within_quotas(view, posed, posed.round_counts(counts))
            return score.value(place_jobs(view, posed, sizes, score))

        seed = value_of(best)
        members = (
            _counts(jobs, counts, len(problem.keys)) for jobs, counts in search.save()["members"]
        )
        self.results.added.append(_more(value_of(found), seed))
        self.results.could_add.append(_more(max(map(value_of, members)), seed))
        again = refine_sizes(view, posed, [posed.round_counts(found)], speeds, again=True)
        ranked = list(map(posed.round_counts, search.ranked(problem, CANDIDATES)))
        evolved = refine_sizes(view, posed, ranked, speeds, again=True)
        self.results.evolved.append(_more(score.value(evolved), seed))
        self.results.fitted.append(_more(score.value(again), seed))


def bench_states(
    *, quick: bool = False, progress: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """Two rows for each size; a quick run has only the first size."""
    rows = []
    for gpus, jobs, gap in CASES[:1] if quick else CASES:
        for seeded in (False, True):
            kind = "seeded" if seeded else "without seeds"
            progress(f"states of a run of {jobs:,} jobs on {gpus:,} GPUs, {kind}")
            rows.append(run_in_process(bench_state, gpus, jobs, gap, seeded))
    return rows


def bench_state(gpus: int, jobs: int, gap: float, seeded: bool) -> dict[str, Any]:
    """One row; call it in its own process."""
    started = start_up()
    policy = _InspectedPolicy(seed=SEED)
    policy.seeded = seeded
    policy.results = results = StateResults()
    trace = generate(jobs=jobs, seed=SEED, gap=gap)

    def watch(entry: Entry) -> None:
        if len(results.problems) >= STATES:
            raise _EnoughError

    with suppress(_EnoughError):
        Simulator(trace, Cluster.of(gpus), policy, mechanism="elastic", seed=SEED).run(watch)
    kind = "seeded" if seeded else "without seeds"
    row: dict[str, Any] = {
        "case": f"{gpus} GPUs, states of a run, {kind}",
        "gpus": gpus,
        "jobs": round(float(np.mean([len(p.keys) for p in results.problems]))),
        "population": min(policy.Settings().population, gpus),
        "seeded": seeded,
        "n": len(results.problems),
        "generations": policy.Settings().generations,
        "ms_per_generation": round(float(np.median(results.times)), 3),
        "warm_gap_percent": round(float(np.mean(results.gaps)), 4),
        "worst_warm_gap_percent": max(results.gaps),
        "exact_was_deployed_percent": round(100 * float(np.mean(results.same)), 1),
        "added_percent": round(float(np.mean(results.added)), 4),
        "could_add_percent": round(float(np.mean(results.could_add)), 4),
        "fitted_percent": round(float(np.mean(results.fitted)), 4),
        "deployed_percent": round(float(np.mean(results.evolved)), 4),
        "startup_seconds": started,
        "peak_mb": own_peak_mb(),
    }
    return row if seeded else row | _rivals(results.problems, policy.Settings().population)


def _rivals(problems: list[Problem], population: int) -> dict[str, Any]:
    """Mean gaps of the rivals; annealing, Pollux and cold starts on a few of the states."""
    few = problems[:: max(1, len(problems) // FEW)][:FEW]
    cold: dict[float, list[float]] = {0.1: [], 1.0: []}
    annealed, pollux, seconds = [], [], []
    for problem in few:
        best = optimum(problem)
        search = Search(min(population, problem.gpus), SEED)
        search.refresh(problem)
        began = _CLOCK()
        for limit, gaps in cold.items():
            while _CLOCK() - began < limit:
                search.evolve(problem, 1)
            gaps.append(gap_percent(problem, search.best(problem), best))
        annealed.append(gap_percent(problem, anneal(problem, ANNEALING_SECONDS), best))
        began = _CLOCK()
        table = problem.table(problem.mean_work)
        divided = divide(table, problem.least, problem.most, problem.gpus)
        seconds.append(_CLOCK() - began)
        pollux.append(gap_percent(problem, divided, best))
    greedy_gaps = [gap_percent(p, _greedy(p), optimum(p)) for p in problems]
    return {
        "rival": "greedy, annealing, Pollux's search",
        "gap_percent_0_1s": round(float(np.mean(cold[0.1])), 4),
        "gap_percent_1s": round(float(np.mean(cold[1.0])), 4),
        "greedy_gap_percent": round(float(np.mean(greedy_gaps)), 4),
        "annealing_gap_percent": round(float(np.mean(annealed)), 4),
        "annealing_seconds": ANNEALING_SECONDS,
        "pollux_gap_percent": round(float(np.mean(pollux)), 4),
        "pollux_seconds": round(float(np.median(seconds)), 3),
    }


def _greedy(problem: Problem) -> NDArray[np.int32]:
    table = problem.table(problem.mean_work)
    return greedy(table, problem.least, problem.most, problem.gpus)


def _counts(jobs: list[int], counts: list[int], n: int) -> NDArray[np.int32]:
    row = np.zeros(n, np.int32)
    row[jobs] = counts
    return row


def _more(worth: float, than: float) -> float:
    return 100 * (worth - than) / max(abs(than), 1e-12)
