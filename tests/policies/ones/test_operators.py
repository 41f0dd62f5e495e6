"""Every operator, from any population and any mix of jobs, keeps the laws of a schedule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.lab.bench.search import reference
from ones.policies.ones.place import kernels
from ones.policies.ones.place.genome import Rows, allocate_rows, counts_of, reindex, write
from ones.policies.ones.place.operators import Tables
from ones.policies.ones.place.search import Operators
from ones.policies.ones.score.problem import Problem
from tests.policies.ones.problems import (
    all_counts,
    check_rows,
    empty_rows,
    problems,
    seeds,
    simple,
    tables_of,
)

BOTH = (kernels, reference)
K = 4

any_seed = st.integers(0, 2**32)
slope_shares = st.sampled_from([0.0, 0.5, 1.0])


def population(problem: Problem, t: Tables, seed: int, ops: Operators = reference) -> Rows:
    rows = empty_rows(problem, 4 * K)
    ops.scatter(t, seeds(np.random.default_rng(seed), K), rows)
    return rows


def offspring(t: Tables, rows: Rows, seed: int, ops: Operators) -> None:
    rng = np.random.default_rng(seed)
    ops.crossover(t, rng.integers(0, K, (K, 2)), seeds(rng, K), rows, K, True)
    rates = rng.choice([-1.0, 0.5, 1.0], K)
    ops.mutate(t, rng.integers(0, K, K), rates, seeds(rng, K), rows, 3 * K)


@settings(max_examples=200)
@given(problems(), slope_shares, any_seed)
def test_every_candidate_is_a_schedule(problem: Problem, slope_share: float, seed: int) -> None:
    t = tables_of(problem, slope_share=slope_share)
    rows = population(problem, t, seed, kernels)
    check_rows(rows, problem, K)
    offspring(t, rows, seed, kernels)
    check_rows(rows, problem, 4 * K)


@settings(max_examples=200)
@given(problems(), slope_shares, any_seed)
def test_kernels_equal_the_reference(problem: Problem, slope_share: float, seed: int) -> None:
    t = tables_of(problem, slope_share=slope_share)
    results = []
    for ops in BOTH:
        rows = population(problem, t, seed, ops)
        offspring(t, rows, seed, ops)
        ranks, single = np.empty(4 * K), np.empty((4 * K, t.draws.shape[1]))
        marks = np.empty(4 * K, np.uint64)
        ops.score(t, rows, ranks, single, marks)
        runs = [
            list(zip(rows.jobs[i, :n].tolist(), rows.counts[i, :n].tolist(), strict=True))
            for i, n in enumerate(rows.length)
        ]
        results.append((runs, ranks.tolist(), single.tolist(), marks.tolist()))
    assert results[0] == results[1]


@settings(max_examples=100)
@given(problems(), problems(), any_seed)
def test_refresh_fits_any_population_to_any_other_jobs(
    before: Problem, now: Problem, seed: int
) -> None:
    t = tables_of(now)
    results = []
    for ops in BOTH:
        rows = reindex(population(before, tables_of(before), seed), before.keys, now.keys)
        ops.refresh(t, seeds(np.random.default_rng(seed), K), rows)
        check_rows(rows, now, K)
        results.append([c.tolist() for c in all_counts(rows, now, K)])
    assert results[0] == results[1]


@given(problems(), any_seed)
def test_crossover_keeps_the_number_of_workers(problem: Problem, seed: int) -> None:
    t = tables_of(problem)
    rng = np.random.default_rng(seed)
    pairs = rng.integers(0, K, (K, 2))
    drawn = seeds(rng, K)
    children = []
    for ops in BOTH:
        rows = population(problem, t, seed)
        ops.crossover(t, pairs, drawn, rows, K, False)
        counts = all_counts(rows, problem, 3 * K)
        for p, (a, b) in enumerate(pairs):
            one, other = counts[K + 2 * p], counts[K + 2 * p + 1]
            assert (one + other == counts[a] + counts[b]).all()
            assert max(one.sum(), other.sum()) <= problem.gpus
        children.append([rows.jobs[i, :n].tolist() for i, n in enumerate(rows.length[: 3 * K])])
    assert children[0] == children[1]  # the order of occurrence too


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=40), any_seed)
def test_reorder_packs_by_occurrence_and_changes_no_counts(
    gpus: list[tuple[int, int]], seed: int
) -> None:
    """Seen from single GPUs: a child's jobs come in the order of their first worker."""
    rng = np.random.default_rng(seed)
    a, b = (
        {j: sum(g[i] == j for g in gpus) for j in dict.fromkeys(g[i] for g in gpus)} for i in (0, 1)
    )
    tossed = rng.integers(0, 2, len(gpus)).tolist()
    spread = [[j for j, n in c.items() for _ in range(n)] for c in (a, b)]
    child = [spread[0][g] if tossed[g] else spread[1][g] for g in range(len(gpus))]
    packed = reference.cross(a, b, tossed, len(gpus))[0]
    assert list(packed) == list(dict.fromkeys(child))
    assert packed == {job: child.count(job) for job in packed}


@pytest.mark.parametrize("ops", BOTH)
def test_when_there_are_fewer_gpus_the_longest_running_jobs_give_theirs(ops: Operators) -> None:
    def refreshed(before: list[int], processed: list[float], gpus: int) -> list[int]:
        problem = simple(gpus, [4] * len(before), processed=np.array(processed))
        rows = allocate_rows(1, len(before))
        write(rows, 0, np.array(before, np.int32))
        ops.refresh(tables_of(problem), np.ones(1, np.uint64), rows)
        counts: list[int] = counts_of(rows, 0, len(before)).tolist()
        return counts

    assert refreshed([3, 3], [5.0, 9.0], gpus=5) == [3, 2]
    assert refreshed([3, 3], [5.0, 9.0], gpus=3) == [2, 1]
    # no job can spare a GPU: the one that ran longest makes room
    assert refreshed([1, 1], [5.0, 9.0], gpus=1) == [1, 0]


@given(st.integers(1, 30), st.integers(1, 5), st.integers(0, 20), any_seed)
def test_each_draw_keeps_its_best(rows: int, draws: int, wanted: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    single = rng.integers(0, 6, (rows, draws)).astype(float)
    free = rng.random(rows) < 0.7
    chosen = [ops.winners(single, free.copy(), wanted).tolist() for ops in BOTH]
    assert chosen[0] == chosen[1]
    assert len(set(chosen[0])) == len(chosen[0]) <= wanted
    assert all(free[row] for row in chosen[0])
