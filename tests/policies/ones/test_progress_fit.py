"""The regression behind the predictor, and how honest its intervals are made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime

from ones.core import JobId
from ones.policies.ones.predict import progress_fit
from ones.policies.ones.predict.calibration import calibrated_tau, coverage_of
from ones.policies.ones.predict.history import Floats, Lesson
from ones.policies.ones.predict.progress_fit import (
    WARM_STEPS,
    BetaRegression,
    Data,
    link_of,
    loss_and_gradient,
)
from tests.policies.ones.lessons import epochs_of_job, taught


@given(st.integers(0, 2**32))
@settings(max_examples=25)
def test_the_gradient_is_that_of_finite_differences(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, p = 40, 7
    data = Data(rng.normal(size=(n, p)), rng.uniform(1, 80, n), rng.uniform(0.01, 0.999, n))
    theta = np.append(rng.normal(0, 2, p), rng.uniform(3, 20))
    _, exact = loss_and_gradient(theta, data)
    near = approx_fprime(theta, lambda t: loss_and_gradient(t, data)[0], 1e-6)
    np.testing.assert_allclose(exact, near, rtol=1e-3, atol=1e-4)


def test_a_known_beta_regression_is_recovered() -> None:
    """1,000 points of 100 jobs: β of 1,000 others within 10 % in the median, 25 % for 9 of 10."""
    rng = np.random.default_rng(5)
    spread = np.array([1.0, 0.3, 1.5, 0.2, 0.15])
    a = np.array([1.5, -1.0, 3.0, -4.0, -2.0])

    def points(n: int) -> tuple[Lesson, Floats]:
        z = rng.normal(size=(n, 5)).clip(-2, 2)
        beta = link_of(z @ a + 15.0)[0]
        alpha = rng.uniform(1, 30, n)
        rho = rng.beta(alpha, beta).clip(1e-4, 0.999)
        return Lesson("", 7.0 + z * spread, alpha, rho), beta

    regression = BetaRegression()
    regression.fit([])  # nothing to learn, no harm
    regression.fit([points(10)[0] for _ in range(100)])
    others, true = points(1000)
    error = np.abs(regression.beta(others.rows, others.alpha, [""] * 1000) / true - 1)
    assert np.median(error) < 0.10
    assert np.quantile(error, 0.9) < 0.25


def test_a_warm_refit_of_a_thousand_points_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on from the last one: few evaluations of the loss."""
    model = taught(120)
    rng = np.random.default_rng(9)
    evaluations: list[int] = []

    def counted(*args: Any) -> tuple[float, Floats]:
        evaluations[-1] += 1
        return loss_and_gradient(*args)

    monkeypatch.setattr(progress_fit, "loss_and_gradient", counted)
    for i in range(9):
        job = epochs_of_job(rng)
        for features in job:
            model.record_epoch(JobId(f"n{i}"), features)
        evaluations.append(0)
        model.finished(JobId(f"n{i}"), completed=True)
    points = [len(lesson["rho"]) for lesson in model.save()["history"]["lessons"]]
    assert sum(points) == 1000
    assert 0 < max(evaluations) <= 2 * WARM_STEPS


@given(st.floats(0.1, 1.5), st.integers(0, 2**32))
@settings(max_examples=20)
def test_the_tau_that_points_were_drawn_with_is_found(tau: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    alpha, beta = rng.uniform(1, 50, 2000), rng.uniform(5, 50, 2000)
    rho = rng.beta(alpha * tau, beta * tau).clip(1e-9, 1 - 1e-9)
    found = calibrated_tau(alpha, beta, rho)
    assert coverage_of(alpha * found, beta * found, rho) == pytest.approx(0.9, abs=0.02)


def test_far_too_good_or_bad_predictions_end_at_the_limits_of_tau() -> None:
    alpha = beta = np.full(50, 20.0)
    assert calibrated_tau(alpha, beta, np.full(50, 0.5)) == pytest.approx(2.0)
    assert calibrated_tau(alpha, beta, np.full(50, 0.999)) == pytest.approx(0.05)
