"""Predictions made worse on purpose: by how much, and that it is the same each time."""

from __future__ import annotations

import numpy as np
import pytest

from ones.policies.ones.mistakes import mistakes
from ones.policies.ones.settings import OnesSettings


@pytest.mark.parametrize("error", [2.0, 4.0])
def test_half_of_the_jobs_are_off_by_more_than_the_error_either_way(error: float) -> None:
    found = mistakes(7, range(2000), error)
    off = np.exp(np.abs(np.log(found)))
    assert np.median(off) == pytest.approx(error, rel=0.1)
    assert (found > 1).mean() == pytest.approx(0.5, abs=0.05)


def test_they_follow_the_seed_and_the_job_and_nothing_else() -> None:
    all_at_once = mistakes(7, range(50), 2.0).tolist()
    assert [float(mistakes(7, [job], 2.0)[0]) for job in reversed(range(50))] == all_at_once[::-1]
    assert mistakes(8, range(50), 2.0).tolist() != all_at_once
    assert len(set(all_at_once)) == 50


def test_no_error_is_none_at_all() -> None:
    assert mistakes(7, range(9), 1.0).tolist() == [1.0] * 9
    with pytest.raises(ValueError, match=r"prediction_error 0\.5 is not at least 1"):
        OnesSettings(prediction_error=0.5)
