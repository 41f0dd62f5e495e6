"""Fits recover what made the data, and are optimistic about what they have not seen."""

from __future__ import annotations

from math import isfinite

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ones.core.job import Configuration, StepTime
from ones.models.goodput import ASSUMED_NOISE_RATIO, efficiency, noise_scale
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


@given(
    st.dictionaries(
        st.builds(
            Configuration,
            st.sampled_from([1, 2, 3, 2**20]),
            st.sampled_from([1, 2, 2**20]),
            st.sampled_from([1, 64, 257, 2**31]),
            st.sampled_from([1, 2, 2**20]),
        ),
        st.builds(StepTime, st.sampled_from([1e-9, 0.1, 0.5, 3.0, 1e6]), st.just(1)),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([1, 2, 64]),
    st.sampled_from([1, 64, 2**31]),
)
@example(
    {
        Configuration(1, 1, 64, 1): StepTime(3.0, 1),
        Configuration(2, 1, 64, 1): StepTime(1.0, 1),
        Configuration(2, 1, 256, 2): StepTime(0.5, 1),
    },
    1,
    256,
)
def test_a_step_takes_some_time_whatever_was_measured(
    profile: dict[Configuration, StepTime], gpus: int, batch: int
) -> None:
    fitted = fit_speed(profile)
    assert fitted is not None
    one = seconds(fitted, Configuration(gpus, 1, batch, 1))
    assert isfinite(one)
    assert isfinite(batch / one)
    assert one >= 1e-3 * min(step.seconds for step in profile.values())
    asked = [np.array([n]) for n in (gpus, 1, batch, 1)]
    assert fitted.all_step_seconds(*asked).tolist() == [one]


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
    efficiencies = [efficiency(batch, 64, 500.0) for batch in (32, 64, 128, 1024)]
    assert efficiencies[0] == efficiencies[1] == 1.0
    assert efficiencies == sorted(efficiencies, reverse=True)


def test_a_negative_noise_scale_counts_as_none() -> None:
    """Minus the batch, it would make the efficiency of that batch infinite."""
    assert noise_scale(500.0, 64) == 500.0
    assert noise_scale(None, 64) == ASSUMED_NOISE_RATIO * 64
    for reported in (-1e30, -256.0, -64.0, -0.0):
        assert efficiency(256, 64, noise_scale(reported, 64)) == 0.25
