"""The factor of the reported gradient noise, found from the lengths of completed jobs."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ones.policies.ones.predict.noise_calibration import (
    FACTORS,
    LEAST_FREEDOM,
    NoiseCalibration,
    efficiencies_of,
)

BASE, NOISE = 64, 200.0


def lengths(true_factor: float, batch: int, scatter: float) -> np.ndarray:
    """Effective samples under each factor, of a job of 100,000 true ones run with one batch."""
    true = efficiencies_of(batch, BASE, NOISE)[true_factor == FACTORS][0]
    samples = 1e5 * np.exp(scatter) / true
    return np.asarray(samples * efficiencies_of(batch, BASE, NOISE))


def taught(true_factor: float, *, jobs: int = 40, scatter: float = 0.2) -> NoiseCalibration:
    rng, calibration = np.random.default_rng(3), NoiseCalibration()
    for i in range(jobs):
        batch = int(rng.choice([64, 256, 1024]))
        found = lengths(true_factor, batch, scatter * float(rng.standard_normal()))
        calibration.completed(f"kind{i % 3}", found)
    return calibration


@pytest.mark.parametrize("factor", [0.25, 1.0, 4.0, 16.0])
def test_the_factor_that_equalises_lengths_is_found(factor: float) -> None:
    assert factor / 2 <= taught(factor).factor <= factor * 2
    assert taught(factor, scatter=0.02).factor == factor


def test_few_jobs_and_jobs_without_a_kind_change_nothing() -> None:
    calibration = NoiseCalibration()
    for _ in range(20):
        calibration.completed("", lengths(16.0, 1024, 0.0))
        calibration.completed("", lengths(16.0, 64, 0.0))
    assert calibration.factor == 1.0
    for i in range(LEAST_FREEDOM):  # one job less than this many degrees of freedom need
        calibration.completed("cnn", lengths(16.0, (64, 1024)[i % 2], 0.0))
    assert calibration.factor == 1.0
    calibration.completed("cnn", lengths(16.0, 64, 0.0))
    assert calibration.factor > 1.0


def test_equal_batches_change_nothing() -> None:
    calibration = NoiseCalibration()
    rng = np.random.default_rng(5)
    for _ in range(30):
        calibration.completed("cnn", lengths(8.0, 256, 0.3 * float(rng.standard_normal())))
    assert calibration.factor == 1.0


def test_a_loaded_calibration_continues() -> None:
    calibration, other = taught(4.0), NoiseCalibration()
    other.load(json.loads(json.dumps(calibration.save())))
    assert other.factor == calibration.factor
    assert other.save() == calibration.save()
