"""Eq. 8 and Algorithm 1."""

from __future__ import annotations

import numpy as np

from ones.policies.ones_paper.artifact_search import PrototypeSearch
from ones.policies.ones_paper.genome import IDLE, counts
from ones.policies.ones_paper.search import PaperSearch, best, scores
from tests.policies.ones_paper.problems import genomes, problem


def test_eq_8_the_score_is_the_gpu_seconds_left_of_running_jobs() -> None:
    """Y_processed (1/ρ - 1) c_j / X_j: 100 samples at 2 GPUs / (4/s), 10 samples at 1 / (1/s)."""
    cost = np.array([[0.0, 1 / 2, 2 / 4], [0.0, 1 / 1, 2 / 2]])
    asked = problem(3, [2, 2], cost=cost, work=[100.0, 10.0])
    assert scores(genomes([0, 0, 1]), asked).tolist() == [100 * 2 / 4 + 10 * 1 / 1]


def test_eq_4_a_schedule_with_an_idle_gpu_loses_to_any_that_uses_it() -> None:
    asked = problem(2, [1, 1], work=[1.0, 1e9])
    candidates = genomes([0, IDLE], [0, 1])
    assert best(candidates, asked) == 1
    free = asked._replace(idle_charge=0.0)
    assert best(candidates, free) == 0, "the printed sum alone prefers to leave the long job out"


def test_algorithm_1_one_draw_ranks_all_candidates_and_the_least_score_wins() -> None:
    asked = problem(1, [1, 1])._replace(work=np.array([[2.0, 1.0], [1.0, 9.0]]))
    assert best(genomes([0], [1]), asked) == 1


def test_selection_keeps_the_k_best_of_members_children_and_mutants() -> None:
    asked = problem(4, [2, 2, 2, 2], work=[1.0, 2.0, 3.0, 4.0])
    search, rng = PaperSearch(6, 0.3), np.random.default_rng(0)
    members = search.first_population(asked, rng)
    before = scores(members, asked).min()
    for _ in range(5):
        members = search.iterate(members, np.zeros(4, np.bool_), asked, rng)
        found = scores(members, asked)
        assert (np.diff(found) >= 0).all(), "the best first"
        assert found[0] <= before
        before = found[0]
    assert counts(members[:1], 4).tolist() == [[2, 2, 0, 0]], "the two shortest jobs"


def test_the_first_population_has_a_random_job_on_each_gpu() -> None:
    asked = problem(8, [8, 8, 8])
    members = PaperSearch(20, 0.1).first_population(asked, np.random.default_rng(3))
    shares = counts(members, 3).mean(axis=0)
    assert (members != IDLE).all()
    assert (shares > 1.5).all(), "no job is preferred"


def test_padding_of_the_prototype_does_not_bring_back_young_running_jobs() -> None:
    """Job 0 is young and runs (`later` 0): members keep it, padding does not add it."""
    asked = problem(4, [1, 4], later=[0, 4])._replace(idle_charge=0.0)
    search = PrototypeSearch(2, 0.0)
    pair = genomes([0, 1, IDLE, IDLE], [IDLE, IDLE, IDLE, 1])
    found = counts(search.iterate(pair, np.ones(2, np.bool_), asked, np.random.default_rng(1)), 2)
    assert {tuple(row) for row in found.tolist()} <= {(1, 3), (0, 4)}
    alone = genomes([IDLE, 1, IDLE, IDLE], [IDLE, IDLE, IDLE, 1])
    found = counts(search.iterate(alone, np.ones(2, np.bool_), asked, np.random.default_rng(1)), 2)
    assert found.tolist() == [[0, 4], [0, 4]]


def test_members_of_the_prototype_are_padded_after_crossover() -> None:
    asked = problem(4, [2, 2], work=[1.0, 2.0])._replace(idle_charge=0.0)
    search = PrototypeSearch(2, 0.0)
    members = genomes([0, 0, 0, IDLE], [0, 0, IDLE, IDLE])
    search.refresh(members, asked, np.random.default_rng(1))
    assert members.tolist() == [[0, 0, IDLE, IDLE], [0, 0, IDLE, IDLE]], "capped, not filled"
    found = search.iterate(members, np.ones(2, np.bool_), asked, np.random.default_rng(1))
    assert (counts(found, 2) == 2).all(), "candidates are filled"


def test_young_jobs_are_exempt_from_mutation_in_the_prototype() -> None:
    asked = problem(4, [1, 1, 1, 1], new=[False] * 4)._replace(idle_charge=0.0)
    search = PrototypeSearch(2, 1.0)
    exempt = np.array([True, False, True, False])
    members = search.iterate(genomes([0, 1, 2, 3], [0, 1, 2, 3]), exempt, asked,
                      np.random.default_rng(1))  # fmt: skip
    assert (counts(members, 4)[:, exempt] == 1).all()
