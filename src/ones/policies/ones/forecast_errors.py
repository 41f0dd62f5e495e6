"""How forecasts of jobs of known length came true: speeds change, though lengths do not.

What is left of such a job, at the speed it has, is its middle forecast; others come and go
meanwhile. How long it really took, as a part of that, is kept of the last forecasts, and the
range that users read holds nine tenths of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ones.core.job import JobId
from ones.policies.ones.calibration import HIGH, LOW
from ones.policies.ones.memory import Remembers

#: forecasts remembered, and those of one job that still runs
MOST_RATIOS, MOST_OF_A_JOB = 400, 20
#: so few tell nothing: until then a job may take half as long as said, or twice
FEWEST, UNKNOWN = 20, (0.5, 2.0)


class ForecastErrors(Remembers):
    memory: ClassVar[Mapping[str, Any]] = {
        "_forecasts": dict[JobId, list[tuple[float, float]]],
        "_ratios": list[float],
    }

    def __init__(self) -> None:
        self._forecasts: dict[JobId, list[tuple[float, float]]] = {}  # when, and seconds to go
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
        """Of what is said to be to go, the least and the most that it may be; 1 is within."""
        if len(self._ratios) < FEWEST:
            return UNKNOWN
        low, high = np.quantile(self._ratios, [LOW, HIGH]).tolist()
        return min(low, 1.0), max(high, 1.0)
