"""Fits recover what made the data, and are optimistic about what they have not seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.core.job import Configuration, StepTime
from ones.models.goodput import efficiency
from ones.models.speed import SpeedModel, fit_speed


def seconds(model: SpeedModel, c: Configuration) -> float:
    return model.step_seconds(gpus=c.gpus, nodes=c.nodes, batch=c.batch, micro_steps=c.micro_steps)


@given(st.floats(1e-3, 1.0), st.floats(1e-5, 1e-1), st.floats(0, 0.5), st.floats(0.6, 1.0))
def test_a_fit_recovers_the_model_that_made_the_data(
    fixed: float, per_sample: float, node: float, network: float
) -> None:
    truth = SpeedModel(fixed, per_sample, node, network)
    tried = [
        Configuration(1, 1, 32),
        Configuration(1, 1, 128),
        Configuration(2, 1, 128),
        Configuration(8, 2, 512),
    ]
    fitted = fit_speed({c: StepTime(seconds(truth, c), 20) for c in tried})
    assert fitted is not None
    unseen = Configuration(16, 4, 1024)
    assert seconds(fitted, unseen) == pytest.approx(seconds(truth, unseen), rel=1e-3)


def test_nothing_measured_gives_no_model() -> None:
    assert fit_speed({}) is None


def test_one_measurement_is_met_and_more_gpus_look_free() -> None:
    fitted = fit_speed({Configuration(1, 1, 64): StepTime(0.2, 20)})
    assert fitted is not None
    assert seconds(fitted, Configuration(1, 1, 64)) == pytest.approx(0.2)
    assert seconds(fitted, Configuration(2, 1, 128)) == pytest.approx(0.2)
    assert seconds(fitted, Configuration(1, 1, 128)) == pytest.approx(0.3)


def test_a_job_that_slows_down_over_the_network_is_seen_to_do_so() -> None:
    profile = {
        Configuration(1, 1, 64): StepTime(0.2, 20),
        Configuration(2, 2, 128): StepTime(0.9, 20),
    }
    fitted = fit_speed(profile)
    assert fitted is not None
    assert seconds(fitted, Configuration(2, 2, 128)) == pytest.approx(0.9)
    assert seconds(fitted, Configuration(2, 1, 128)) == pytest.approx(0.2)


def test_a_sample_is_worth_less_the_larger_the_batch() -> None:
    worth = [efficiency(batch, 64, 500.0) for batch in (32, 64, 128, 1024)]
    assert worth[0] == worth[1] == 1.0
    assert worth == sorted(worth, reverse=True)
