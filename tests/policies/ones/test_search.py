"""The search as a whole: it follows the jobs, gets better, never worse, and can be continued."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.lab.bench.search import reference
from ones.models.allocation import exact
from ones.policies.ones.place.search import Search
from ones.policies.ones.score.problem import IDLE, Problem
from tests.policies.ones.problems import check, flow_problems, problems, simple

sizes = st.integers(2, 9)


def a_problem(gpus: int, jobs: int, *, seed: int = 1, draws: int = 4) -> Problem:
    """Jobs that gain less from each further GPU, as real ones do."""
    rng = np.random.default_rng(seed)
    most = rng.integers(1, 9, jobs, np.int32)
    c = np.arange(1, 9)
    cost = np.zeros((jobs, 9))
    cost[:, 1:] = rng.lognormal(0, 0.5, (jobs, 1)) * (1 + rng.uniform(0.02, 0.2, (jobs, 1)) * c)
    return Problem(
        gpus=gpus,
        keys=np.arange(jobs),
        least=np.ones(jobs, np.int32),
        most=most,
        held=np.zeros(jobs, np.int32),
        processed=rng.random(jobs),
        cost=cost,
        work=rng.lognormal(3, 1, (draws, jobs)),
    )


@settings(max_examples=60)
@given(problems(), sizes, st.integers(0, 99))
def test_the_best_is_a_schedule_and_never_gets_worse(
    problem: Problem, size: int, seed: int
) -> None:
    search = Search(size, seed)
    search.refresh(problem)
    before = search.cost(problem, search.best(problem))
    for _ in range(6):
        search.evolve(problem, 1)
        found = search.best(problem)
        check(found, problem)
        after = search.cost(problem, found)
        assert after <= before + 1e-9 * abs(before)
        before = after


@settings(max_examples=60)
@given(st.lists(problems(), min_size=2, max_size=3), sizes)
def test_the_population_follows_arrivals_and_departures(asked: list[Problem], size: int) -> None:
    search = Search(size, 1)
    for problem in asked:
        search.refresh(problem)
        search.evolve(problem, 2)
        check(search.best(problem), problem)


@settings(max_examples=30)
@given(problems(), sizes)
def test_kernels_and_reference_find_the_same(problem: Problem, size: int) -> None:
    found = []
    for operators in (None, reference):
        search = Search(size, 3, operators=operators)
        search.refresh(problem)
        search.evolve(problem, 5)
        found.append((search.best(problem).tolist(), search.save()))
    assert found[0] == found[1]


@settings(max_examples=30)
@given(problems(), problems(), sizes)
def test_a_saved_search_continues_identically(problem: Problem, later: Problem, size: int) -> None:
    search = Search(size, 5)
    search.refresh(problem)
    search.evolve(problem, 3)
    saved = json.loads(json.dumps(search.save()))
    other = Search(2, 0)
    other.load(saved)
    for one in (search, other):
        one.evolve(problem, 3)
        one.refresh(later)
        one.evolve(later, 3)
    assert search.best(later).tolist() == other.best(later).tolist()
    assert search.save() == other.save()
    assert search.stalled == other.stalled


def test_an_unused_search_can_be_saved() -> None:
    other = Search(2, 0)
    other.load(json.loads(json.dumps(Search(7, 1).save())))
    assert other.save() == Search(7, 1).save()


def test_the_plain_search_comes_close_to_the_optimum() -> None:
    problem = a_problem(64, 64)
    search = Search(64, 1)
    search.refresh(problem)
    search.evolve(problem, 100)
    table = problem.table(problem.work.mean(axis=0))
    least = search.cost(problem, exact(table, problem.least, problem.most, problem.gpus))
    assert search.cost(problem, search.best(problem)) <= 1.01 * least


def test_what_the_jobs_hold_now_stays_in_the_population() -> None:
    problem = a_problem(12, 12)
    table = problem.table(problem.work.mean(axis=0))
    wanted = exact(table, problem.least, problem.most, 12)
    problem = replace(problem, held=wanted)
    search = Search(4, 1)
    search.refresh(problem)
    assert search.best(problem).tolist() == wanted.tolist()
    # other draws make it a bad one: it stays all the same, and comes back with the old ones
    strange = replace(problem, work=1 / problem.work)
    search.evolve(strange, 30)
    assert search.best(strange).tolist() != wanted.tolist()
    assert search.best(problem).tolist() == wanted.tolist()


def test_a_member_that_is_added_can_be_the_best() -> None:
    problem = a_problem(64, 64)
    wanted = exact(problem.table(problem.work.mean(axis=0)), problem.least, problem.most, 64)
    search = Search(8, 1)
    search.refresh(problem)
    search.add(wanted, problem)
    assert search.best(problem).tolist() == wanted.tolist()


@settings(max_examples=100)
@given(flow_problems(), sizes, st.integers(0, 3), st.integers(0, 99))
def test_it_is_never_worse_than_the_exact_division_it_was_given(
    problem: Problem, size: int, generations: int, seed: int
) -> None:
    """Even when a seed leaves GPUs idle: what repair fills in must pay."""
    table = problem.table(problem.work.mean(axis=0))
    best = exact(table, problem.least, problem.most, problem.gpus, use_all=False)
    search = Search(size, seed)
    search.refresh(problem)
    search.add(best, problem)
    search.evolve(problem, generations)
    found = search.best(problem)
    check(found, problem)
    # the division is the best of all, so it is not better either
    assert search.cost(problem, found) == pytest.approx(search.cost(problem, best))


@settings(max_examples=30)
@given(flow_problems(), sizes)
def test_kernels_and_reference_find_the_same_for_flow_time(problem: Problem, size: int) -> None:
    found = []
    for operators in (None, reference):
        search = Search(size, 3, operators=operators)
        search.refresh(problem)
        search.evolve(problem, 5)
        found.append((search.best(problem).tolist(), search.save()))
    assert found[0] == found[1]


def test_gpus_without_gain_stay_idle_unless_all_must_be_used() -> None:
    """Each of two jobs is as fast with one GPU as with three."""
    cost = np.array([[0.0, -1.0, -1.0, -1.0]] * 2)
    problem = simple(6, [3, 3], cost=cost)
    for use_all, used in ((False, 2), (True, 6)):
        search = Search(4, 1)
        asked = replace(problem, use_all=use_all)
        search.refresh(asked)
        search.evolve(asked, 10)
        assert search.best(asked).sum() == used


def test_a_running_job_is_not_given_a_part_of_what_would_pay() -> None:
    """To six GPUs it would grow with a gain, to the five that there are with a loss."""
    cost = np.array([[0.4, -0.7, -1.3, -1.8, -4.0, -3.0, -5.0]])
    problem = simple(5, [6], cost=cost, held=np.array([4]))
    for operators in (None, reference):
        search = Search(4, 1, operators=operators)
        search.refresh(replace(problem, use_all=False))
        assert search.best(replace(problem, use_all=False)).tolist() == [4]


def test_an_idle_gpu_that_a_job_could_use_is_worse_than_any_cost() -> None:
    problem = simple(4, [2, 2], cost=np.array([[0.0, 1.0, 1e8], [0.0, 1.0, 1e8]]))
    search = Search(4, 1)
    full = search.cost(problem, np.array([2, 2], np.int32))
    assert full == 2e8
    assert search.cost(problem, np.array([2, 1], np.int32)) > IDLE
    # GPUs beyond the limits of all jobs cost nothing
    assert search.cost(replace(problem, gpus=9), np.array([2, 2], np.int32)) == 2e8
    search.refresh(problem)
    assert search.best(problem).tolist() == [2, 2]


def test_stalled_counts_generations_without_improvement() -> None:
    problem = simple(2, [1, 1])
    search = Search(4, 1)
    search.refresh(problem)
    search.evolve(problem, 7)
    assert search.stalled == 7
    search.refresh(replace(problem, work=2 * problem.work))
    assert search.stalled == 7  # the same jobs and limits: nothing to hope for
    search.refresh(replace(problem, most=np.array([2, 1]), cost=np.ones((2, 3))))
    assert search.stalled == 0


def test_the_mean_over_draws_ranks() -> None:
    """Job 0 is cheap in the first draw and dear on average."""
    problem = simple(1, [1, 1], work=np.array([[1.0, 2.0], [9.0, 2.0]]))
    search = Search(8, 1)
    search.refresh(problem)
    search.evolve(problem, 10)
    assert search.best(problem)[1] == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gpus": 0}, "nothing to search"),
        ({"keys": np.zeros(2)}, "same key"),
        ({"least": np.zeros(2)}, "at least"),
        ({"least": np.full(2, 2)}, "below least"),
        ({"most": np.full(2, 5)}, "no cost for 5"),
        ({"held": np.zeros(3)}, "held has shape"),
        ({"work": np.zeros((0, 2))}, "work has shape"),
        ({"cost": np.zeros((3, 2))}, "cost has shape"),
        ({"work": np.full((1, 2), np.nan)}, "not finite"),
    ],
)
def test_an_invalid_problem_is_rejected(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(simple(2, [1, 1]), **changes)  # type: ignore[arg-type]


def test_a_population_of_one_is_rejected() -> None:
    with pytest.raises(ValueError, match="population of 1"):
        Search(1, 0)


def test_a_problem_with_other_jobs_refreshes_the_population() -> None:
    search = Search(4, 1)
    search.refresh(simple(2, [1, 1]))
    other = simple(3, [2, 2, 2])
    check(search.best(other), other)
    search.evolve(simple(2, [1, 1]), 1)
