"""The search on states of real runs: how far from the optimum it is, and what it adds to its seeds.

A run of `ones` on the paper's workload is stopped at every n-th question, after the policy
has spent on it what it spends on every event: a warm population, and as many generations
as are shipped.

Without seeds, the gap is that of the best member to the exact division of the same cost.
With seeds it is 0 by construction. What counts then is what the exact division does not
see: candidates are laid out on real GPUs, and each job's speed is that of the nodes it
really spans. `added_percent` is how much more the deployed candidate is worth so than the
exact one, `could_add_percent` how much the best of all members would be, `fitted_percent`
what is gained by choosing sizes again that lie badly, and `deployed_percent` what the policy
deploys: the same, from the best of some members.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ones.core.cluster import Cluster
from ones.core.view import View
from ones.lab.bench import alone, peak_mb
from ones.lab.bench_search import anneal, gap_percent, start_up
from ones.models.allocation import greedy
from ones.policies.ones.fitting import fitted, within_owners_room
from ones.policies.ones.policy import Ones
from ones.policies.ones.problem import Problem, optimum
from ones.policies.ones.question import Question
from ones.policies.ones.search import Search
from ones.policies.ones.spans import Judge, placed
from ones.policies.pollux.search import divide
from ones.runlog import Entry
from ones.sim import Simulator
from ones.workload import generate

#: (GPUs, jobs, seconds between two of them)
CASES = ((64, 50, 12.0), (256, 200, 3.0))
EVERY, STATES = 25, 12
#: questions with fewer jobs are answered by anybody
FEWEST_JOBS = 4
#: rivals that are slow look at so many of the states, and annealing takes so long
FEW, ANNEALING_SECONDS = 3, 0.3
SEED = 1
_CLOCK = time.process_time


class _EnoughError(Exception):
    """All states have been seen."""


@dataclass(slots=True)
class Seen:
    """What was found in each state."""

    problems: list[Problem] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    same: list[bool] = field(default_factory=list)  # the exact division was deployed
    added: list[float] = field(default_factory=list)
    could_add: list[float] = field(default_factory=list)
    fitted: list[float] = field(default_factory=list)
    evolved: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # of a generation, ms


class _Watched(Ones):
    """The policy as it is, looked at after every n-th search."""

    seen: Seen
    asked = 0

    def _evolve(self, view: View, generations: int) -> None:
        began = _CLOCK()
        super()._evolve(view, generations)
        spent = _CLOCK() - began
        question = self._question(view) if self._may_update(view) else None
        if question is None or len(question.jobs) < FEWEST_JOBS or self._search is None:
            return
        self.asked += 1
        if self.asked % EVERY == 0:
            self._look(view, question, self._search)
            self.seen.times.append(1000 * spent / max(1, generations))

    def _look(self, view: View, question: Question, search: Search) -> None:
        problem = question.problem
        best, found = optimum(problem), search.best(problem)
        self.seen.problems.append(problem)
        self.seen.gaps.append(gap_percent(problem, found, best))
        self.seen.same.append(bool((found == best).all()))
        speeds = self._learned.known.speeds
        judge = Judge(view, question, speeds)

        def worth(counts: NDArray[np.int32]) -> float:
            sizes = within_owners_room(view, question, question.rounded(counts))
            return judge.value(placed(view, question, sizes, judge))

        seed = worth(best)
        members = (
            _counts(jobs, counts, len(problem.keys)) for jobs, counts in search.save()["members"]
        )
        self.seen.added.append(_more(worth(found), seed))
        self.seen.could_add.append(_more(max(map(worth, members)), seed))
        again = fitted(view, question, [question.rounded(found)], speeds, again=True)
        ranked = list(map(question.rounded, search.ranked(problem, self._settings.candidates)))
        evolved = fitted(view, question, ranked, speeds, again=True)
        self.seen.evolved.append(_more(judge.value(evolved), seed))
        self.seen.fitted.append(_more(judge.value(again), seed))


def bench_states(
    *, quick: bool = False, progress: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """Two rows for each size; a quick run has only the first size."""
    rows = []
    for gpus, jobs, gap in CASES[:1] if quick else CASES:
        for seeded in (False, True):
            kind = "seeded" if seeded else "without seeds"
            progress(f"states of a run of {jobs:,} jobs on {gpus:,} GPUs, {kind}")
            rows.append(alone(bench_state, gpus, jobs, gap, seeded))
    return rows


def bench_state(gpus: int, jobs: int, gap: float, seeded: bool) -> dict[str, Any]:
    """One row; to be called in a process of its own."""
    started = start_up()
    policy = _Watched(seed=SEED, seeds=seeded)
    policy.seen = seen = Seen()
    trace = generate(jobs=jobs, seed=SEED, gap=gap)

    def watch(entry: Entry) -> None:
        if len(seen.problems) >= STATES:
            raise _EnoughError

    with suppress(_EnoughError):
        Simulator(trace, Cluster.of(gpus), policy, mechanism="elastic", seed=SEED).run(watch)
    kind = "seeded" if seeded else "without seeds"
    row: dict[str, Any] = {
        "case": f"{gpus} GPUs, states of a run, {kind}",
        "gpus": gpus,
        "jobs": round(float(np.mean([len(p.keys) for p in seen.problems]))),
        "population": min(policy.Settings().population, gpus),
        "seeded": seeded,
        "n": len(seen.problems),
        "generations": policy.Settings().generations,
        "ms_per_generation": round(float(np.median(seen.times)), 3),
        "warm_gap_percent": round(float(np.mean(seen.gaps)), 4),
        "worst_warm_gap_percent": max(seen.gaps),
        "exact_was_deployed_percent": round(100 * float(np.mean(seen.same)), 1),
        "added_percent": round(float(np.mean(seen.added)), 4),
        "could_add_percent": round(float(np.mean(seen.could_add)), 4),
        "fitted_percent": round(float(np.mean(seen.fitted)), 4),
        "deployed_percent": round(float(np.mean(seen.evolved)), 4),
        "startup_seconds": started,
        "peak_mb": peak_mb(),
    }
    return row if seeded else row | _rivals(seen.problems, policy.Settings().population)


def _rivals(problems: list[Problem], population: int) -> dict[str, Any]:
    """Mean gaps on the same states; annealing, Pollux and cold starts on a few of them."""
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
        free = _unforced(problem)
        began = _CLOCK()
        table = free.table(free.work.mean(axis=0))
        divided = divide(table, free.least, free.most, free.gpus)
        seconds.append(_CLOCK() - began)
        pollux.append(gap_percent(free, divided, optimum(free)))
    by_greed = [gap_percent(p, _greedy(p), optimum(p)) for p in map(_unforced, problems)]
    return {
        "rival": "greedy, annealing, Pollux's search",
        "gap_percent_0_1s": round(float(np.mean(cold[0.1])), 4),
        "gap_percent_1s": round(float(np.mean(cold[1.0])), 4),
        "greedy_gap_percent": round(float(np.mean(by_greed)), 4),
        "annealing_gap_percent": round(float(np.mean(annealed)), 4),
        "annealing_seconds": ANNEALING_SECONDS,
        "pollux_gap_percent": round(float(np.mean(pollux)), 4),
        "pollux_seconds": round(float(np.median(seconds)), 3),
    }


def _unforced(problem: Problem) -> Problem:
    """Greed and Pollux's search know no jobs that must run: they are measured without."""
    return replace(problem, new=np.zeros(len(problem.keys), np.bool_))


def _greedy(problem: Problem) -> NDArray[np.int32]:
    table = problem.table(problem.work.mean(axis=0))
    return greedy(table, problem.least, problem.most, problem.gpus)


def _counts(jobs: list[int], counts: list[int], n: int) -> NDArray[np.int32]:
    row = np.zeros(n, np.int32)
    row[jobs] = counts
    return row


def _more(worth: float, than: float) -> float:
    return 100 * (worth - than) / max(abs(than), 1e-12)
