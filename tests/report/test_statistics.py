"""Tests and intervals against cases worked out by hand, and against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ones.report.statistics import (
    mean_interval,
    rank_biserial,
    reduction_interval,
    reduction_percent,
    signed_rank_test,
)


def test_five_wins_of_five_by_hand() -> None:
    # one of 2^5 sign patterns is as extreme: 1/32, and the two-sided test doubles it
    found = signed_rank_test([1, 2, 3, 4, 5], [2, 4, 6, 8, 10])
    assert found.p_less == pytest.approx(1 / 32)
    assert found.p_two_sided == pytest.approx(2 / 32)
    assert found.p_greater == pytest.approx(1.0)
    assert (found.n, found.ties, found.effect) == (5, 0, -1.0)
    assert found.effect_interval.low == found.effect_interval.high == -1.0


def test_rank_sums_by_hand() -> None:
    # differences -1, -2, 3, -4: ranks 1, 2, 3, 4; R+ = 3, R- = 7; W+ <= 3 in 5 of 16 patterns
    found = signed_rank_test([0, 0, 3, 0], [1, 2, 0, 4])
    assert found.effect == pytest.approx((3 - 7) / 10)
    assert found.p_less == pytest.approx(5 / 16)


def test_fifty_wins_have_the_p_value_of_the_papers_table() -> None:
    """The least two-sided p of 50 untied pairs by the normal approximation: 7.557e-10."""
    theirs = np.arange(1.0, 51.0)
    found = signed_rank_test(np.zeros(50).tolist(), theirs.tolist())
    assert found.p_two_sided == pytest.approx(7.557e-10, rel=1e-3)
    assert found.p_greater == pytest.approx(1 - found.p_two_sided / 2)


def test_many_pairs_are_tested_as_scipy_does() -> None:
    rng = np.random.default_rng(3)
    one, other = rng.lognormal(5, 1, 80), rng.lognormal(5.2, 1, 80)
    found = signed_rank_test(one.tolist(), other.tolist())
    for side, p in (("two-sided", found.p_two_sided), ("less", found.p_less)):
        expected = stats.wilcoxon(one, other, alternative=side, method="asymptotic").pvalue
        assert p == pytest.approx(expected)


def test_equal_pairs_tell_nothing() -> None:
    found = signed_rank_test([1, 2, 3], [1, 2, 3])
    assert (found.p_two_sided, found.p_less, found.effect, found.ties) == (1.0, 1.0, 0.0, 3)
    assert rank_biserial([2.0], [2.0]) == 0.0


def test_reductions_and_their_interval() -> None:
    assert reduction_percent([60, 60], [100, 140]) == pytest.approx(50.0)
    rng = np.random.default_rng(1)
    theirs = rng.lognormal(5, 0.5, 400)
    ours = 0.7 * theirs * rng.lognormal(0, 0.05, 400)
    interval = reduction_interval(ours.tolist(), theirs.tolist())
    assert 30.0 in interval
    assert interval.high - interval.low < 5.0


def test_whole_seeds_are_resampled_where_there_are_several() -> None:
    """Two seeds, 0 % and 50 %: the interval must reach both, though each has many jobs."""
    ours = [100.0] * 100 + [50.0] * 100
    theirs = [100.0] * 200
    seeds = [1] * 100 + [2] * 100
    by_seed = reduction_interval(ours, theirs, seeds)
    by_job = reduction_interval(ours, theirs)
    assert (by_seed.low, by_seed.high) == (0.0, 50.0)
    assert by_job.low > 15.0
    assert by_job.high < 35.0


def test_the_interval_of_a_mean_covers_it_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(10)
    hits = sum(5.0 in mean_interval(rng.normal(5.0, 1.0, 30).tolist()) for _ in range(400))
    assert 0.9 < hits / 400 < 0.99
    assert mean_interval([4.0, 4.0]).low == mean_interval([4.0, 4.0]).high == 4.0


@pytest.mark.parametrize(("one", "other"), [([], []), ([1.0], [1.0, 2.0])])
def test_what_is_not_paired_is_refused(one: list[float], other: list[float]) -> None:
    with pytest.raises(ValueError, match="pairs"):
        signed_rank_test(one, other)
