"""Number of epochs of a job of which only the time of an epoch is known.

Jobs differ more in the size of an epoch than in their total time: large data sets are read a few
times, small ones often. So the estimate is the geometric mean of two: the usual number of epochs,
and the usual number of GPU-seconds divided by the time of an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from ones.policies.ones.predict.memory import Remembers

#: expected epochs when nothing is known or declared (docs/paper.md, 17)
COLD_START_EPOCHS = 30.0
#: completed jobs that are remembered, and the least number for a median
REMEMBERED, ENOUGH = 100, 5


class ColdStart(Remembers):
    memory: ClassVar[Mapping[str, Any]] = {"_seconds": list[float], "_usual": float | None}

    def __init__(self) -> None:
        self._seconds: list[float] = []  # length of completed jobs on one GPU
        self._usual: float | None = None  # median of `_seconds`; None: too few jobs

    def learn(self, seconds: float) -> None:
        self._seconds = [*self._seconds[1 - REMEMBERED :], seconds]
        if len(self._seconds) >= ENOUGH:
            self._usual = float(np.median(self._seconds))

    def usual_epochs(self, epoch_seconds: Sequence[float | None]) -> list[float | None]:
        """Returns estimates from the times of an epoch on one GPU; None: unknown."""
        known = [seconds for seconds in epoch_seconds if seconds]
        usual = self._usual
        if usual is None:
            if not known:
                return [None] * len(epoch_seconds)
            usual = COLD_START_EPOCHS * float(np.exp(np.mean(np.log(known))))
        return [s and sqrt(COLD_START_EPOCHS * usual / s) for s in epoch_seconds]
