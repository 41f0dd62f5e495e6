"""Curves through losses: known ones are found again."""

from __future__ import annotations

import numpy as np
import pytest

from ones.models.loss_curve import LossCurve, fit_loss, without_outliers


@pytest.mark.parametrize(
    ("slope", "offset", "floor"), [(0.4, 0.5, 0.1), (0.05, 0.4, 0.0), (2.0, 0.3, 1.2)]
)
def test_a_noiseless_curve_is_recovered(slope: float, offset: float, floor: float) -> None:
    truth = LossCurve(slope, offset, floor)
    epochs = np.arange(1.0, 31.0)
    found = fit_loss(truth.at(epochs).tolist())
    assert found is not None
    later = np.arange(1.0, 101.0)
    assert found.at(later) == pytest.approx(truth.at(later), rel=1e-3)
    # in the units of the report: 1/(s k + o) divided by the scale
    assert found.slope / found.scale == pytest.approx(slope, rel=1e-2)
    assert found.offset / found.scale == pytest.approx(offset, rel=1e-2)
    assert found.floor * found.scale == pytest.approx(floor, abs=1e-3)


def test_it_is_flat_where_the_loss_stops_changing() -> None:
    curve = LossCurve(slope=1.0, offset=0.0, floor=0.5)  # 1/k + 0.5
    # first e with 1/(e-10) - 1/e < 0.0499: e (e - 10) > 200.4
    assert curve.flat_at(0.0499, 10, 100) == 21
    assert curve.flat_at(1e-9, 10, 100) is None


def test_an_outlier_is_replaced_by_the_mean_of_its_neighbours() -> None:
    losses = [2.0, 1.9, 9.0, 1.7, 1.6]
    assert without_outliers(losses) == [2.0, 1.9, pytest.approx(1.8), 1.7, 1.6]
    calm, upset = fit_loss([2.0, 1.9, 1.8, 1.7, 1.6]), fit_loss(losses)
    assert calm is not None
    assert upset is not None
    assert upset.at(np.array([10.0])) == pytest.approx(calm.at(np.array([10.0])), rel=0.02)


def test_too_few_or_impossible_losses_give_no_curve() -> None:
    assert fit_loss([2.0, 1.0]) is None
    assert fit_loss([2.0, 1.0, float("nan")]) is None
    assert fit_loss([2.0, 1.0, 0.0]) is None


def test_a_constant_or_rising_loss_bears_a_fit() -> None:
    for losses in ([1.0] * 5, [1.0, 1.1, 1.2, 1.3]):
        curve = fit_loss(losses)
        assert curve is not None
        assert np.isfinite(curve.at(np.arange(1.0, 50.0))).all()


def test_losses_of_any_size_bear_a_fit() -> None:
    """A part of the largest one that is rounded to 0 left nothing to divide by."""
    for losses in ([2.0, 5e-324, 1.0, 0.9], [1e30, 1e-300, 5e-324], [5e-324] * 3, [1e30] * 4):
        curve = fit_loss(losses)
        assert curve is not None
        assert np.isfinite(curve.at(np.arange(1.0, 50.0))).all()
