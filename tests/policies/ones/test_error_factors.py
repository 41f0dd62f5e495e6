"""Random errors of predictions: their size, and that they are repeatable."""

from __future__ import annotations

import numpy as np
import pytest

from ones.policies.ones.predict.error_factors import error_factors
from ones.policies.ones.settings import OnesSettings


@pytest.mark.parametrize("error", [2.0, 4.0])
def test_half_of_the_jobs_are_wrong_by_more_than_the_error(
    error: float,
) -> None:
    found = error_factors(7, range(2000), error)
    off = np.exp(np.abs(np.log(found)))
    assert np.median(off) == pytest.approx(error, rel=0.1)
    assert (found > 1).mean() == pytest.approx(0.5, abs=0.05)


def test_factors_depend_on_the_seed_and_the_job_only() -> None:
    all_at_once = error_factors(7, range(50), 2.0).tolist()
    assert [float(error_factors(7, [job], 2.0)[0]) for job in reversed(range(50))] == all_at_once[
        ::-1
    ]
    assert error_factors(8, range(50), 2.0).tolist() != all_at_once
    assert len(set(all_at_once)) == 50


def test_an_error_of_one_changes_nothing() -> None:
    assert error_factors(7, range(9), 1.0).tolist() == [1.0] * 9
    with pytest.raises(ValueError, match=r"prediction_error 0\.5 is not at least 1"):
        OnesSettings(prediction_error=0.5)
