"""The seven parameters of a step, fitted to what was measured."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.optimize import check_grad

from ones.core.job import Configuration, StepTime
from ones.models.step_fit import (
    NEGLIGIBLE,
    NETWORK_FACTOR,
    PolluxStepModel,
    _error,
    fit_steps,
    measurements_of,
)

TRUE = PolluxStepModel(0.02, 0.0008, 0.12, 0.004, 0.03, 0.002, 2.0)
SIZES = [(1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (4, 2), (8, 2), (16, 4)]
Profile = dict[Configuration, StepTime]


def seconds(model: PolluxStepModel, gpus: int, nodes: int, part: int, parts: int = 1) -> float:
    one = [np.array([x]) for x in (gpus, nodes, part, parts)]
    return float(model.step_seconds(*one)[0])


def measured(sizes: list[tuple[int, int]], parts: list[int], noise: float = 0.0) -> Profile:
    rng = np.random.default_rng(1)
    return {
        Configuration(gpus, nodes, gpus * part): StepTime(
            seconds(TRUE, gpus, nodes, part) * rng.lognormal(0, noise), 20
        )
        for (gpus, nodes), part in product(sizes, parts)
    }


def worst(model: PolluxStepModel, sizes: list[tuple[int, int]], parts: list[int]) -> float:
    """Largest relative error."""
    return max(
        abs(seconds(model, gpus, nodes, part) / seconds(TRUE, gpus, nodes, part) - 1)
        for (gpus, nodes), part in product(sizes, parts)
    )


def test_a_step_is_what_the_formula_says() -> None:
    gradient = 0.02 + 0.0008 * 50
    network = 0.12 + 0.004 * 6
    expected = 2 * gradient + (gradient**2 + network**2) ** 0.5
    assert seconds(TRUE, 8, 2, 50, parts=3) == pytest.approx(expected)
    assert seconds(TRUE, 1, 1, 50, parts=3) == pytest.approx(3 * gradient)


def test_the_slopes_that_the_fit_follows_are_right() -> None:
    points = measurements_of(
        {
            **measured(SIZES, [32, 64], 0.1),
            Configuration(4, 1, 512, 2): StepTime(0.3, 9),
            Configuration(1, 1, 512, 4): StepTime(0.9, 9),
        }
    )
    x = np.array([*np.log([0.01, 0.001, 0.1, 0.01, 0.05, 0.001]), 1.7])
    off = check_grad(lambda x: _error(x, points)[0], lambda x: _error(x, points)[1], x)
    assert off < 1e-5


def test_it_finds_the_times_that_measurements_were_made_from() -> None:
    model = fit_steps(measured(SIZES, [32, 128, 512]))
    assert model is not None
    assert worst(model, SIZES, [16, 64, 256, 512]) < 0.05
    assert model.fixed == pytest.approx(TRUE.fixed, rel=0.2)
    assert model.per_sample == pytest.approx(TRUE.per_sample, rel=0.05)
    noisy = fit_steps(measured(SIZES, [32, 128, 512], noise=0.02))
    assert noisy is not None
    assert worst(noisy, SIZES, [32, 128, 512]) < 0.1


def test_what_has_not_been_tried_costs_nothing() -> None:
    assert fit_steps({}) is None
    alone = fit_steps(measured([(1, 1)], [64]))
    assert alone is not None
    # one size of part: half of the time is taken as fixed
    assert alone.fixed == pytest.approx(seconds(TRUE, 1, 1, 64) / 2)
    assert seconds(alone, 4, 1, 64) == pytest.approx(seconds(TRUE, 1, 1, 64), rel=1e-3)
    assert alone.node <= 2 * NEGLIGIBLE
    inside = fit_steps(measured([(1, 1), (2, 1), (4, 1)], [64, 128]))
    assert inside is not None
    assert inside.network == pytest.approx(NETWORK_FACTOR * inside.node)
    assert inside.node > 0.005
