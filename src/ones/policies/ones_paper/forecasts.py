"""Forecasts of ends, with 90 % intervals."""

from __future__ import annotations

from ones.core.job import Forecast, JobId
from ones.core.view import JobView
from ones.policies.ones_paper.history import features_of
from ones.policies.ones_paper.prediction import Prediction

#: longest time to the end in a forecast: 30 years
MOST_SECONDS = 1e9


def forecast_of(job: JobView, now: float, prediction: Prediction) -> dict[JobId, Forecast]:
    """Expected end of a job at its present speed; empty if the speed is not known."""
    step = job.progress.step_seconds
    if job.description is None or job.held is None or not job.held.batch or not step:
        return {}
    rate = job.held.batch / step
    samples = prediction.interval(features_of(job, job.description.dataset_size))
    return {job.id: Forecast(*(round(now + min(n / rate, MOST_SECONDS), 3) for n in samples))}
