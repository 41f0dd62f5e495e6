"""How many epochs a job will take of which nothing is known but how long one of them takes.

Jobs differ more in what they call an epoch than in how long they train: large data are
seen a few times, small data often. So a job is thought to lie half way, by factors, between
the usual number of epochs and the usual number of GPU-seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

#: completed jobs whose length is remembered, and how many it takes to tell what is usual
REMEMBERED, ENOUGH = 100, 5


class ColdStart:
    def __init__(self, epochs: float) -> None:
        self._epochs = epochs
        self._seconds: list[float] = []  # of completed jobs, on one GPU

    def learn(self, seconds: float) -> None:
        self._seconds = [*self._seconds[1 - REMEMBERED :], seconds]

    def usual_epochs(self, epoch_seconds: Sequence[float | None]) -> list[float | None]:
        """For each job, by the seconds of its epoch on one GPU; None: not known."""
        known = [seconds for seconds in epoch_seconds if seconds]
        if len(self._seconds) >= ENOUGH:
            usual = float(np.median(self._seconds))
        elif known:
            usual = self._epochs * float(np.exp(np.mean(np.log(known))))
        else:
            return [None] * len(epoch_seconds)
        return [s and float(np.sqrt(self._epochs * usual / s)) for s in epoch_seconds]

    def save(self) -> dict[str, Any]:
        return {"seconds": list(self._seconds)}

    def load(self, saved: Mapping[str, Any]) -> None:
        self._seconds = list(map(float, saved["seconds"]))
