"""How many epochs a job will take of which nothing is known but how long one of them takes.

Jobs differ more in what they call an epoch than in how long they train: large data are
seen a few times, small data often. So a job is thought to lie half way, by factors, between
the usual number of epochs and the usual number of GPU-seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np

#: expected epochs when nothing is known or declared (docs/paper.md, 17)
COLD_START_EPOCHS = 30.0
#: completed jobs whose length is remembered, and how many it takes to tell what is usual
REMEMBERED, ENOUGH = 100, 5


class ColdStart:
    def __init__(self) -> None:
        self._seconds: list[float] = []  # of completed jobs, on one GPU
        self._usual: float | None = None  # of them, once there are enough

    def learn(self, seconds: float) -> None:
        self._set_lengths([*self._seconds[1 - REMEMBERED :], seconds])

    def _set_lengths(self, seconds: list[float]) -> None:
        self._seconds = seconds
        self._usual = float(np.median(seconds)) if len(seconds) >= ENOUGH else None

    def usual_epochs(self, epoch_seconds: Sequence[float | None]) -> list[float | None]:
        """For each job, by the seconds of its epoch on one GPU; None: not known."""
        known = [seconds for seconds in epoch_seconds if seconds]
        usual = self._usual
        if usual is None:
            if not known:
                return [None] * len(epoch_seconds)
            usual = COLD_START_EPOCHS * float(np.exp(np.mean(np.log(known))))
        return [s and sqrt(COLD_START_EPOCHS * usual / s) for s in epoch_seconds]

    def save(self) -> dict[str, Any]:
        return {"seconds": list(self._seconds)}

    def load(self, saved: Mapping[str, Any]) -> None:
        self._set_lengths(list(map(float, saved["seconds"])))
