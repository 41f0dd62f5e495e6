"""Draws of progress without chance: evenly spread quantiles, shifted from job to job."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.policies.ones.predict.progress import RHO_RANGE, ProgressModel

shapes = st.floats(1.0, 50.0)


@given(st.lists(st.tuples(shapes, shapes), min_size=1, max_size=20), st.integers(1, 32))
def test_draws_are_repeatable_and_within_bounds(jobs: list[tuple[float, float]], n: int) -> None:
    model = ProgressModel()
    alpha, beta = np.array(jobs).T
    rho = model.quantiles(alpha, beta, n)
    assert rho.shape == (n, len(jobs))
    assert rho.tolist() == model.quantiles(alpha, beta, n).tolist()
    assert ((rho >= 0.02) & (rho <= 0.999)).all()


@given(shapes, shapes)
def test_draws_follow_the_distribution(alpha: float, beta: float) -> None:
    from scipy.special import betaincinv

    rho = np.sort(ProgressModel().quantiles(np.array([alpha]), np.array([beta]), 16)[:, 0])
    expected = betaincinv(alpha, beta, (np.arange(16) + 0.5) / 16)
    assert rho == pytest.approx(np.clip(expected, *RHO_RANGE), abs=1e-6)


def test_every_job_has_the_same_quantiles_in_its_own_order() -> None:
    model = ProgressModel()
    rho = model.quantiles(np.full(12, 3.0), np.full(12, 5.0), 16)
    for job in range(1, 12):
        assert np.sort(rho[:, job]) == pytest.approx(np.sort(rho[:, 0]))
    assert len({tuple(column) for column in rho.T.tolist()}) > 8
    # no draw takes all jobs for nearly done, or for just begun
    means = rho.mean(axis=1)
    assert means.max() - means.min() < 0.15 * (rho.max() - rho.min())


def test_one_draw_is_the_median() -> None:
    rho = ProgressModel().quantiles(np.array([4.0, 7.0]), np.array([4.0, 7.0]), 1)
    assert rho[0].tolist() == pytest.approx([0.5, 0.5])
