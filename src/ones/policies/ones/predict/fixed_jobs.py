"""Forecasts for fixed-size jobs that report their progress: the mean time of a part so far.

Such a job has not joined, so nothing is known of its batch; it cannot change its speed either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ones.core.job import JobId
from ones.core.view import JobView
from ones.policies.ones.predict.forecast_errors import ForecastErrors
from ones.policies.ones.predict.memory import Remembers


class FixedJobs(Remembers):
    memory: ClassVar[Mapping[str, Any]] = {
        "_began": dict[JobId, tuple[int, float]],
        "_errors": None,
    }

    def __init__(self) -> None:
        #: epochs and time of a job's first report since its last start
        self._began: dict[JobId, tuple[int, float]] = {}
        self._errors = ForecastErrors()

    def started(self, job: JobId) -> None:
        self._began.pop(job, None)

    def reported(self, job: JobView, epochs: int, now: float) -> None:
        """Notes a report of a job with this number of completed epochs."""
        if _is_fixed(job):
            self._began.setdefault(job.id, (epochs, now))

    def epoch_ended(self, job: JobView, now: float) -> None:
        self.reported(job, job.progress.epochs, now)
        seconds = self._middle(job, now)
        if seconds is not None:
            self._errors.record(job.id, now, seconds)

    def ended(self, job: JobId, now: float, *, completed: bool) -> None:
        self._errors.ended(job, now, completed=completed)
        self._began.pop(job, None)

    def seconds_to_go(self, job: JobView, now: float) -> tuple[float, float, float] | None:
        """Returns the remaining seconds: middle, low and high end (90 %)."""
        middle = self._middle(job, now)
        if middle is None:
            return None
        low, high = self._errors.interval()
        return middle, low * middle, high * middle

    def _middle(self, job: JobView, now: float) -> float | None:
        began = self._began.get(job.id)
        if began is None or job.held is None or job.job.epochs is None or not _is_fixed(job):
            return None
        (before, since), done = began, job.progress.epochs
        left = job.job.epochs - done
        if done <= before or left < 0:
            return None
        return left * (now - since) / (done - before)


def _is_fixed(job: JobView) -> bool:
    return not job.job.elastic and job.description is None
