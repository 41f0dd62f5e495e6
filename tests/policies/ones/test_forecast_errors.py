"""The interval of a forecast for jobs of known length."""

from __future__ import annotations

import json

from ones.core.job import JobId
from ones.policies.ones.predict.forecast_errors import FEWEST, MOST_RATIOS, UNKNOWN, ForecastErrors


def end_late(forecast_errors: ForecastErrors, jobs: int, factor: float) -> None:
    for number in range(jobs):
        job = JobId(f"{factor}-{number}")
        forecast_errors.record(job, 0.0, 100.0)
        forecast_errors.ended(job, 100.0 * factor, completed=True)


def test_the_interval_contains_nine_tenths_of_past_ratios() -> None:
    forecast_errors = ForecastErrors()
    assert forecast_errors.interval() == UNKNOWN
    end_late(forecast_errors, 2, 0.1)
    end_late(forecast_errors, FEWEST * 2, 0.8)
    end_late(forecast_errors, FEWEST * 2, 1.5)
    end_late(forecast_errors, 2, 9.0)
    assert forecast_errors.interval() == (0.8, 1.5)


def test_cancelled_jobs_do_not_count_and_the_history_is_bounded() -> None:
    forecast_errors = ForecastErrors()
    for number in range(FEWEST):
        forecast_errors.record(JobId(str(number)), 0.0, 10.0)
        forecast_errors.ended(JobId(str(number)), 90.0, completed=False)
    assert forecast_errors.interval() == UNKNOWN
    end_late(forecast_errors, 3 * MOST_RATIOS, 2.0)
    saved = json.loads(json.dumps(forecast_errors.save()))
    assert len(saved["ratios"]) == MOST_RATIOS
    again = ForecastErrors()
    again.load(saved)
    assert again.interval() == forecast_errors.interval() == (1.0, 2.0)
