"""Errors of past forecasts for jobs of known length: only their speed changes.

The forecast of such a job is its remaining work at the present speed. The ratio of the real to the
forecast time is kept for the last forecasts; the interval that users see covers 90 % of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ones.core.job import JobId
from ones.policies.ones.predict.calibration import HIGH, LOW
from ones.policies.ones.predict.memory import Remembers

#: ratios that are remembered, and forecasts of one running job
MOST_RATIOS, MOST_OF_A_JOB = 400, 20
#: least number of ratios for an interval, and the interval before that
FEWEST, UNKNOWN = 20, (0.5, 2.0)


class ForecastErrors(Remembers):
    memory: ClassVar[Mapping[str, Any]] = {
        "_forecasts": dict[JobId, list[tuple[float, float]]],
        "_ratios": list[float],
    }

    def __init__(self) -> None:
        self._forecasts: dict[JobId, list[tuple[float, float]]] = {}  # time, remaining seconds
        self._ratios: list[float] = []

    def record(self, job: JobId, at: float, seconds: float) -> None:
        if seconds > 0:
            self._forecasts[job] = [
                *self._forecasts.get(job, ())[1 - MOST_OF_A_JOB :],
                (at, seconds),
            ]

    def ended(self, job: JobId, at: float, *, completed: bool) -> None:
        forecasts = self._forecasts.pop(job, [])
        if completed:
            self._ratios += [(at - when) / seconds for when, seconds in forecasts]
            del self._ratios[:-MOST_RATIOS]

    def interval(self) -> tuple[float, float]:
        """Returns the 90 % interval of real over forecast time; it contains 1."""
        if len(self._ratios) < FEWEST:
            return UNKNOWN
        low, high = np.quantile(self._ratios, [LOW, HIGH]).tolist()
        return min(low, 1.0), max(high, 1.0)
