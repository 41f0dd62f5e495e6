"""Eq. 6 and Eq. 7: progress, its regression, the remaining workload and forecasts."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from ones.core.job import JobId
from ones.policies.ones_paper.history import POINTS, DataSet, Features, History
from ones.policies.ones_paper.prediction import Prediction
from ones.policies.ones_paper.predictors import (
    PREDICTORS,
    BetaRegression,
    Constant,
    GaussianProcess,
)

A = JobId("a")


def at_epoch(epoch: int, length: int = 20, size: int = 1000) -> Features:
    """A job whose loss and accuracy tell how far it is."""
    done = epoch / length
    return Features(size, epoch * size, 2.0, 2.0 * (1 - 0.9 * done), 0.9 * done)


def data(lengths: list[int]) -> DataSet:
    history = History(0)
    for i, length in enumerate(lengths):
        for epoch in range(1, length + 1):
            history.add_epoch(JobId(f"j{i}"), at_epoch(epoch, length))
        assert history.end(JobId(f"j{i}"), completed=True)
    return history.data


def test_footnote_the_features() -> None:
    features = Features(1000, 4000, first_loss=2.0, loss=0.5, accuracy=0.6)
    assert features.row == pytest.approx(
        (np.log(1000), np.log(3), np.log(4000), 1 - 0.5 / 2.0, 0.6)
    )


def test_eq_6_alpha_is_the_epochs_processed_and_at_least_one() -> None:
    assert at_epoch(4).alpha == 4.0
    assert Features(1000, 300).alpha == 1.0


def test_a_job_that_has_not_run_counts_as_one_epoch() -> None:
    assert Features(1000, 0).processed == 1000


def test_history_learns_the_progress_of_completed_jobs_only() -> None:
    found = data([10])
    assert found.rho == pytest.approx(np.arange(1, 10) / 10)
    assert found.alpha == pytest.approx(np.arange(1, 10))
    history = History(0)
    for epoch in (1, 2, 3):
        history.add_epoch(A, at_epoch(epoch))
    assert not history.end(A, completed=False)
    assert not len(history.data.rho)


def test_an_evaluation_before_training_teaches_nothing() -> None:
    history = History(0)
    for epoch in range(4):  # epoch 0 has no samples
        history.add_epoch(JobId("a"), at_epoch(epoch, 3))
    assert history.end(JobId("a"), completed=True)
    assert history.data.rho.tolist() == pytest.approx([1 / 3, 2 / 3])


def test_history_has_a_limited_size() -> None:
    found = data([60] * 30)
    assert len(found.rho) == POINTS


def test_eq_6_the_gradient_of_the_likelihood_is_exact() -> None:
    found, model = data([8, 20]), BetaRegression(0)
    x = np.nan_to_num(found.rows)
    theta = np.array([0.1, -0.2, 0.3, 0.4, -0.1, 12.0])
    numeric = approx_fprime(theta, lambda t: model.loss(t, x, found.alpha, found.rho)[0], 1e-6)
    assert model.loss(theta, x, found.alpha, found.rho)[1] == pytest.approx(numeric, abs=1e-4)


@pytest.mark.parametrize("kind", [BetaRegression, GaussianProcess])
def test_a_fitted_predictor_tells_the_epochs_left(
    kind: type[BetaRegression] | type[GaussianProcess],
) -> None:
    model = kind(0)
    model.fit(data([20] * 6))
    asked = [at_epoch(epoch) for epoch in (3, 10, 17)]
    left = model.beta(np.array([f.row for f in asked]), np.array([f.alpha for f in asked]))
    assert left == pytest.approx([17, 10, 3], rel=0.35)
    assert (left >= 1).all()


def test_the_constant_predictor_tells_the_same_of_all_jobs_until_the_next_fit() -> None:
    drawn = []
    for seed in range(200):
        model = Constant(seed)
        left = model.beta(np.zeros((3, 5)), np.ones(3))
        assert len(set(left.tolist())) == 1
        drawn.append(left[0])
    assert np.quantile(drawn, [0.25, 0.5, 0.75]) == pytest.approx([8, 15, 18], rel=0.25)
    before = model.beta(np.zeros((1, 5)), np.ones(1))[0]
    model.fit(data([5]))
    assert model.beta(np.zeros((1, 5)), np.ones(1))[0] != before


def test_eq_7_the_remaining_workload_follows_from_the_drawn_progress() -> None:
    """The median of Y_processed (1/ρ - 1) is near β epochs."""
    model = Prediction("beta", 0, prior_epochs=30.0)
    drawn = model.draw([at_epoch(20)], 4000, np.random.default_rng(0))[:, 0]
    assert np.median(drawn) == pytest.approx(10 * 1000, rel=0.1)
    assert (drawn > 0).all()


def test_before_jobs_have_completed_the_length_is_declared_or_the_prior() -> None:
    model = Prediction("beta", 0, prior_epochs=30.0)
    alpha, beta = model.parameters([at_epoch(10), at_epoch(10)._replace(declared_epochs=50)])
    assert (alpha.tolist(), beta.tolist()) == ([10, 10], [20, 40])


def test_a_forecast_has_its_interval_around_it_and_narrows() -> None:
    model = Prediction("beta", 0, prior_epochs=30.0)
    widths = []
    for epoch in (2, 10, 25):
        middle, low, high = model.interval(at_epoch(epoch))
        assert low <= middle <= high
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True)


@pytest.mark.parametrize("name", PREDICTORS)
def test_predictions_go_on_after_save_and_load(name: str) -> None:
    one, other = (Prediction(name, 3, prior_epochs=30.0) for _ in range(2))
    for i in range(4):
        for epoch in range(1, 9 + i):
            one.add_epoch(JobId(f"j{i}"), at_epoch(epoch, 8 + i))
        one.end(JobId(f"j{i}"), completed=True)
    one.add_epoch(A, Features(1000, 1000, first_loss=float("nan")))
    other.load(json.loads(json.dumps(one.save(), allow_nan=False)))
    for model in (one, other):
        model.add_epoch(A, at_epoch(2))
        model.end(A, completed=True)
    asked = [at_epoch(5), Features(1000, 0)]
    assert np.array_equal(one.parameters(asked), other.parameters(asked))
