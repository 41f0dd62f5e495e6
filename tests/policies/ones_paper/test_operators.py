"""The operators as the paper words them, with the captions of its figures."""

from __future__ import annotations

import numpy as np

from ones.policies.ones_paper.fills import gain, length, waiting_first
from ones.policies.ones_paper.genome import IDLE, Flags, counts
from ones.policies.ones_paper.operators import admit_new, crossover, mutate, reorder, scale_down
from ones.policies.ones_paper.search import PaperSearch
from tests.policies.ones_paper.problems import genomes, problem

ONE_DRAW = np.zeros(1, np.int64)


def barred(*jobs: bool) -> Flags:
    return np.array([jobs], np.bool_)


def test_refresh_2_a_job_above_its_limit_loses_gpus() -> None:
    """c_j - floor(R_j c_j / B_j): job 0 holds four GPUs and its limit feeds two."""
    rows = genomes([0, 0, 1, 0, 0])
    scale_down(rows, np.array([1, 1], np.int32), np.array([2, 3], np.int32))
    assert rows.tolist() == [[0, 0, 1, IDLE, IDLE]]


def test_refresh_2_a_job_below_its_minimum_loses_all() -> None:
    rows = genomes([0, 0, 0])
    scale_down(rows, np.array([2], np.int32), np.array([1], np.int32))
    assert rows.tolist() == [[IDLE] * 3]


def test_refresh_3_n_new_jobs_get_n_gpus_from_the_largest_t_processed() -> None:
    """Jobs 2 and 3 are new, one GPU is idle: job 1 has run longest and gives the other."""
    rows = genomes([0, 0, 1, 1, IDLE])
    asked = problem(5, [9, 9, 1, 1], new=[False, False, True, True], processed=[5.0, 50.0, 0, 0])
    admit_new(rows, asked.least, asked.first, asked.processed)
    assert counts(rows, 4).tolist() == [[2, 1, 1, 1]]


def test_refresh_3_the_longest_running_job_is_preempted_if_no_job_can_spare_a_gpu() -> None:
    rows = genomes([0, 1])
    asked = problem(2, [1, 1, 1], new=[False, False, True], processed=[5.0, 50.0, 0.0])
    admit_new(rows, asked.least, asked.first, asked.processed)
    assert rows.tolist() == [[0, 2]]


def test_figure_refresh_job_1_is_selected_first_then_job_2_and_the_cluster_is_full() -> None:
    """Job 1 has the least cost and there is still an idle GPU left; then job 2 is selected."""
    rows = genomes([0, IDLE, IDLE])
    waiting_first(rows, barred(False, False, False, False), ONE_DRAW,
                  problem(3, [1, 1, 1, 1], work=[9.0, 1.0, 2.0, 3.0]))  # fmt: skip
    assert rows.tolist() == [[0, 1, 2]]


def test_fill_as_printed_prefers_growth_to_waiting_jobs() -> None:
    """From no GPU, Δφ_j Y_j is the whole cost; a running job only adds what it loses by growing."""
    cost = np.array([[0.0, 1.0, 1.1], [0.0, 1.0, 1.1]])
    asked = problem(2, [2, 1], cost=cost)
    literal, first = genomes([0, IDLE]), genomes([0, IDLE])
    gain(literal, barred(False, False), ONE_DRAW, asked)
    waiting_first(first, barred(False, False), ONE_DRAW, asked)
    assert (literal.tolist(), first.tolist()) == ([[0, 0]], [[0, 1]])


def test_fill_growth_goes_to_the_least_gain_in_cost_up_to_the_limit() -> None:
    cost = np.array([[0.0, 1.0, 2.0, 2.0, 2.0], [0.0, 1.0, 1.1, 1.1, 1.1]])
    rows = genomes([0, 1, IDLE, IDLE, IDLE])
    waiting_first(rows, barred(False, False), ONE_DRAW, problem(5, [4, 3], cost=cost))
    assert counts(rows, 2).tolist() == [[2, 3]]


def test_figure_crossover_each_gpu_goes_to_a_random_child_and_the_other_to_the_other() -> None:
    coins = np.array([[True, False, True, False]])
    children = crossover(genomes([0, 0, 1, 1], [2, 2, 3, 3]), np.array([[0, 1]]), coins)
    assert children.tolist() == [[0, 2, 1, 3], [2, 0, 3, 1]]


def test_figure_mutation_two_workers_are_replaced_by_job_4() -> None:
    rows = mutate(genomes([0, 1, 1, 2]), barred(False, True, False, False, False))
    assert rows.tolist() == [[0, IDLE, IDLE, 2]]
    waiting_first(rows, barred(False, True, False, False, False), ONE_DRAW,
                  problem(4, [1, 2, 1, 0, 2]))  # fmt: skip
    assert rows.tolist() == [[0, 4, 4, 2]]


def test_a_preempted_job_returns_only_if_no_other_job_can_use_its_gpus() -> None:
    rows = genomes([0, IDLE, IDLE])
    waiting_first(rows, barred(False, True, False), ONE_DRAW, problem(3, [1, 2, 1]))
    assert rows.tolist() == [[0, 2, 1]]


def test_figure_reorder_workers_are_packed_in_the_order_of_occurrence() -> None:
    rows = genomes([2, 0, IDLE, 2, 1, 0], [IDLE, 1, 1, 0, 0, 1])
    reorder(rows, 3)
    assert rows.tolist() == [[2, 2, 0, 0, 1, IDLE], [1, 1, 1, 0, 0, IDLE]]


def test_k_pairs_of_children_and_k_mutants_come_from_a_population_of_k() -> None:
    asked = problem(4, [2, 2, 2])
    made = PaperSearch(2, 0.1).offspring(genomes([0, 0, 1, 1], [1, 2, 2, 0]), np.zeros(3, np.bool_),
                                         asked, np.random.default_rng(1))  # fmt: skip
    assert made.shape == (6, 4)


def test_length_new_jobs_by_submission_then_up_to_the_offer_then_up_to_the_limit() -> None:
    """Stages (a), (b) and (c) of the prototype; job 3 is shorter than job 0."""
    asked = problem(
        8, [2, 0, 0, 1], later=[4, 4, 4, 3], new=[False, True, True, False], work=[9.0, 0, 0, 1.0]
    )
    rows = genomes([0, *[IDLE] * 7])
    length(rows, barred(False, False, False, False), ONE_DRAW, asked)
    assert counts(rows, 4).tolist() == [[3, 1, 1, 3]]
