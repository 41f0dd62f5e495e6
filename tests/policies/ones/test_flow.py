"""Weights of flow time: known shares, the law they are built on, and what moves them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.models.allocation import exact, total
from ones.policies.ones.score import flow
from ones.policies.ones.score.flow import (
    AGE_SECONDS,
    MOST_UNITS,
    OLDEST,
    POWER,
    Floats,
    Ints,
    flow_weights,
    marginal_weights,
    rank_weights,
    usual_sizes,
    usual_worth,
)
from ones.policies.ones.score.flow_kernels import marginal

any_seed = st.integers(0, 2**32)


def curves(rng: np.random.Generator, jobs: int, sizes: Ints) -> Floats:
    """Speed-ups that never fall, from no gain at all to a linear one."""
    return np.asarray(sizes[None, :] ** rng.uniform(0.0, 1.0, (jobs, 1)), np.float64)


def most_worth(weights: Floats, speedups: Floats, sizes: Ints, gpus: int) -> float:
    """max over c of the sum of lambda v(c), by the solver that knows nothing of weights."""
    table = np.zeros((len(weights), gpus + 1))
    for c in range(1, gpus + 1):
        place = int(np.searchsorted(sizes, c, side="right")) - 1
        table[:, c] = -weights * speedups[:, place]
    ones = np.ones(len(weights), np.int32)
    counts = exact(table, ones, gpus * ones, gpus, use_all=False)
    return -total(table, counts)


def marginal_reference(
    order: Ints, ranks: Floats, speedups: Floats, sizes: Ints, usual: Floats
) -> Floats:
    """`flow_kernels.marginal` in numpy, to be read."""
    gpus = len(usual) - 1
    worth = (ranks[0] - 1.0) * usual
    weights = np.zeros(len(order))
    before = 0.0
    for job, k in zip(order, ranks, strict=True):
        if before:
            worth = worth * ((k - 1.0) / before)
        weight = min(
            (k - worth[gpus - s]) / v
            for s, v in zip(sizes, speedups[job], strict=True)
            if s <= gpus
        )
        weights[job] = weight
        better = worth.copy()
        for s, v in zip(sizes, speedups[job], strict=True):
            if s <= gpus:
                better[s:] = np.maximum(better[s:], worth[: gpus + 1 - s] + weight * v)
        worth, before = better, k
    return weights


@settings(max_examples=100)
@given(st.integers(1, 12), st.integers(1, 40), st.integers(1, 8), any_seed)
def test_the_kernel_equals_the_reference(jobs: int, gpus: int, per_node: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = usual_sizes(int(rng.integers(1, gpus + 9)), per_node)  # some beyond the cluster
    speedups = curves(rng, jobs, sizes)
    order = rng.permutation(jobs).astype(np.int64)
    ranks = some_ranks(rng, jobs)
    found = marginal(order, ranks, speedups, sizes, usual_worth(gpus))
    reference = marginal_reference(order, ranks, speedups, sizes, usual_worth(gpus))
    assert found.tolist() == reference.tolist()
    assert (found > 0).all()


def some_ranks(rng: np.random.Generator, jobs: int) -> Floats:
    """No job is expected to arrive, or some that rank anywhere between the present jobs."""
    arrivals = rng.integers(0, 3) * rng.uniform(0.0, 2.0, jobs)
    return np.asarray(np.arange(1, jobs + 1) + np.cumsum(arrivals), np.float64)


@settings(max_examples=60)
@given(st.integers(1, 8), st.integers(1, 24), any_seed)
def test_with_the_k_longest_left_the_best_division_is_worth_k(
    jobs: int, gpus: int, seed: int
) -> None:
    """With expected arrivals, which have a part in it, no more than their rank."""
    rng = np.random.default_rng(seed)
    sizes = usual_sizes(gpus, 4)
    speedups = curves(rng, jobs, sizes)
    order = rng.permutation(jobs).astype(np.int64)
    ranks = some_ranks(rng, jobs)
    weights = marginal(order, np.arange(1.0, jobs + 1), speedups, sizes, usual_worth(gpus))
    with_arrivals = marginal(order, ranks, speedups, sizes, usual_worth(gpus))
    for k in range(1, jobs + 1):
        left = order[:k]
        assert most_worth(weights[left], speedups[left], sizes, gpus) == pytest.approx(k)
        worth = most_worth(with_arrivals[left], speedups[left], sizes, gpus)
        assert worth <= ranks[k - 1] * (1 + 1e-9)


@pytest.mark.parametrize("shares", [[1.0], [1 / 32, 31 / 32], [1 / 243, 31 / 243, 211 / 243]])
def test_the_closed_form_gives_the_shares_of_hesrpt(shares: list[float]) -> None:
    """GPUs that maximise sum w c^0.8 are shared as w^5; 31 = 2^5 - 1, 211 = 3^5 - 2^5."""
    seconds = np.arange(len(shares), 0, -1.0)  # the longest first
    heaviest = rank_weights(seconds) ** (1 / (1 - POWER))
    assert heaviest / heaviest.sum() == pytest.approx(shares)


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=30), st.floats(0.0, 20.0))
def test_of_two_jobs_the_one_that_ends_sooner_weighs_more(
    seconds: list[float], arrivals: float
) -> None:
    weights = rank_weights(np.array(seconds), arrivals)
    assert weights.max() == pytest.approx(1.0)
    for i, mine in enumerate(seconds):
        for j, other in enumerate(seconds):
            if mine < other:
                assert weights[i] > weights[j]


def test_each_draw_has_its_own_order() -> None:
    weights = rank_weights(np.array([[1.0, 2.0], [9.0, 2.0]]))
    assert weights[0, 0] > weights[0, 1]
    assert weights[1, 0] < weights[1, 1]


def test_many_equal_curves_come_out_as_the_closed_form() -> None:
    """On many GPUs, with all sizes, lambda_k = G^-p (k^5 - (k-1)^5)^(1/5)."""
    sizes = np.arange(1, 201)
    speedups = np.tile(sizes**POWER, (4, 1))
    seconds = np.array([30.0, 900.0, 2.0, 100.0])
    found = marginal_weights(seconds, speedups, sizes, 200)
    assert found / found.max() == pytest.approx(rank_weights(seconds), rel=0.05)
    assert found.max() == pytest.approx(200**-POWER * (4**5 - 3**5) ** 0.2, rel=0.02)


def test_a_job_that_scales_badly_is_worth_more_a_gpu_second() -> None:
    """Both are as long on one GPU, the one cannot use more: to end it early costs little."""
    sizes = usual_sizes(8, 4)
    speedups = np.array([np.ones(len(sizes)), sizes**0.9])
    weights = marginal_weights(np.array([100.0, 100.0]), speedups, sizes, 8)
    assert weights[0] > 2 * weights[1]


def of_two(
    *,
    ages: list[float],
    seconds: tuple[float, float] = (100.0, 100.0),
    done: float = 0.0,
    ageing: float = 0.0,
) -> Floats:
    sizes = usual_sizes(8, 4)
    weights: Floats = flow_weights(
        np.array([seconds]),
        np.tile(sizes**0.8, (2, 1)),
        sizes,
        8,
        done_seconds=np.array([done, done]),
        ages=np.array(ages),
        ageing=ageing,
    )[0]
    return weights


def test_expected_arrivals_make_the_weights_of_jobs_of_usual_length_more_equal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The future jobs are as long as both jobs were, and rank behind both."""
    ratios = short_over_long(monkeypatch, done=1000.0)
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] > 1.9
    assert 1.0 < ratios[-1] < 1.2


def test_expected_arrivals_do_not_favour_a_job_that_is_longer_than_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The future jobs will overtake it, so they only add to the weight of the shorter job."""
    ratios = short_over_long(monkeypatch, done=0.0)
    assert ratios == sorted(ratios)
    assert ratios[0] > 1.9
    assert ratios[-1] > 1.05 * ratios[0]


def test_half_a_job_is_expected_to_arrive_for_each_present_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = of_two(ages=[0.0, 0.0], seconds=(400.0, 100.0), done=1000.0)
    (expected,) = short_over_long(monkeypatch, done=1000.0, expectations=[0.5])
    assert weights[1] / weights[0] == expected


def short_over_long(
    monkeypatch: pytest.MonkeyPatch,
    *,
    done: float,
    expectations: Sequence[float] = (0.0, 0.5, 2.0),
) -> list[float]:
    """Weight of the shorter of two jobs relative to the longer, for each expectation."""
    ratios = []
    for expected in expectations:
        monkeypatch.setattr(flow, "EXPECTED_ARRIVALS", expected)
        weights = of_two(ages=[0.0, 0.0], seconds=(400.0, 100.0), done=done)
        ratios.append(float(weights[1] / weights[0]))
    return ratios


#: two jobs on 8 GPUs: their seconds on an equal share if one GPU needs 100 s, with 30 s added
SHARED = 100.0 / 4**0.8 + AGE_SECONDS


def test_age_raises_a_weight_by_the_length_of_the_job_and_of_all_jobs() -> None:
    young = of_two(ages=[0.0, 0.0], ageing=1.0)
    old = of_two(ages=[SHARED, 0.0], ageing=1.0)
    assert old[0] == pytest.approx(3 * young[0])  # its own length, and the mean
    assert old[1] == young[1]
    assert of_two(ages=[SHARED, 0.0]).tolist() == young.tolist()


def test_the_same_age_counts_less_in_a_longer_job_and_the_mean_up_to_a_bound() -> None:
    young = of_two(ages=[0.0, 0.0], seconds=(400.0, 100.0), ageing=1.0)
    raised = of_two(ages=[60.0, 60.0], seconds=(400.0, 100.0), ageing=1.0) / young
    assert 1.0 < raised[0] < raised[1]
    lengths = np.array([400.0, 100.0]) / 4**0.8 + AGE_SECONDS
    ancient = of_two(ages=[1e6, 0.0], seconds=(400.0, 100.0), ageing=1.0) / young
    assert ancient[0] == pytest.approx(1 + 1e6 / lengths[0] + OLDEST)


def test_large_clusters_are_counted_in_coarser_units() -> None:
    """Weights differ by little, and the work does not grow with the cluster."""
    rng = np.random.default_rng(1)
    gpus = 2 * MOST_UNITS
    sizes = usual_sizes(64, 4)
    speedups = curves(rng, 300, sizes)
    seconds = rng.lognormal(6, 1, 300)
    typical = int(np.searchsorted(sizes, gpus // 300, side="right")) - 1
    order = np.argsort(-seconds / speedups[:, typical], kind="stable")
    fine = marginal(order, np.arange(1.0, 301.0), speedups, sizes, usual_worth(gpus))
    coarse = marginal_weights(seconds, speedups, sizes, gpus)
    assert np.corrcoef(np.log(fine), np.log(coarse))[0, 1] > 0.95


def test_a_unit_of_several_gpus_has_the_speed_of_the_largest_size_in_it() -> None:
    """On 512 GPUs a unit is 2: the only job of two GPUs is worth as much as one of 1 unit."""
    sizes = np.array([1, 2])
    for speedups in ([1.0, 1.5], [0.1, 1.5]):
        assert marginal_weights(np.array([1.0]), np.array([speedups]), sizes, 512) == pytest.approx(
            1 / 1.5
        )


def test_usual_sizes_are_powers_of_two_then_whole_nodes_in_growing_steps() -> None:
    assert usual_sizes(8, 8).tolist() == [1, 2, 4, 8]
    assert usual_sizes(13, 6).tolist() == [1, 2, 4, 6, 12]
    assert usual_sizes(3, 8).tolist() == [1, 2]
    assert usual_sizes(64, 4).tolist() == [1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 60, 64]


@given(st.integers(1, 5000), st.integers(1, 64))
def test_usual_sizes_do_not_fragment_nodes(most: int, per_node: int) -> None:
    sizes = usual_sizes(most, per_node)
    assert sizes[0] == 1
    assert sizes[-1] <= most
    assert (np.diff(sizes) > 0).all()
    assert (sizes[sizes > per_node] % per_node == 0).all()
    assert len(sizes) < 60
