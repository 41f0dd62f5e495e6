"""The range of a forecast, where only the speed is not known."""

from __future__ import annotations

import json

from ones.core.job import JobId
from ones.policies.ones.paces import FEWEST, MOST_RATIOS, UNKNOWN, Paces


def end_late(paces: Paces, jobs: int, factor: float) -> None:
    for number in range(jobs):
        job = JobId(f"{factor}-{number}")
        paces.told(job, 0.0, 100.0)
        paces.ended(job, 100.0 * factor, completed=True)


def test_nine_tenths_of_what_was_said_came_true_within_it() -> None:
    paces = Paces()
    assert paces.range() == UNKNOWN
    end_late(paces, 2, 0.1)
    end_late(paces, FEWEST * 2, 0.8)
    end_late(paces, FEWEST * 2, 1.5)
    end_late(paces, 2, 9.0)
    assert paces.range() == (0.8, 1.5)


def test_a_job_that_was_cancelled_says_nothing_and_what_is_kept_is_bounded() -> None:
    paces = Paces()
    for number in range(FEWEST):
        paces.told(JobId(str(number)), 0.0, 10.0)
        paces.ended(JobId(str(number)), 90.0, completed=False)
    assert paces.range() == UNKNOWN
    end_late(paces, 3 * MOST_RATIOS, 2.0)
    saved = json.loads(json.dumps(paces.save()))
    assert len(saved["ratios"]) == MOST_RATIOS
    again = Paces()
    again.load(saved)
    assert again.range() == paces.range() == (1.0, 2.0)
