"""Lengths of completed jobs of each kind, and the progress of running ones.

The Beta regression learns slowly that jobs of a kind are of similar length. This estimate uses the
lengths directly: the mean remaining length of the completed jobs that were longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ones.core.job import JobId
from ones.models.bounded_table import MAX_KINDS, set_bounded
from ones.policies.ones.predict.memory import Remembers

#: last lengths that are remembered of a kind
MOST_LENGTHS = 50
#: remaining share of the work done, if a job is longer than all completed jobs of its kind
OVERTIME = 0.1
#: length of the furthest running job relative to its progress, if none of its kind completed
AS_MUCH_AGAIN = 2.0


class KindLengths(Remembers):
    """Lengths in epochs of effective samples, for kinds that have a name."""

    memory: ClassVar[Mapping[str, Any]] = {
        "_whole": dict[str, list[float]],
        "_running": dict[JobId, tuple[str, float]],
    }

    def __init__(self) -> None:
        self._whole: dict[str, list[float]] = {}
        self._running: dict[JobId, tuple[str, float]] = {}

    def record(self, job: JobId, kind: str, epochs: float) -> None:
        if kind:
            self._running[job] = (kind, epochs)

    def ended(self, job: JobId) -> None:
        self._running.pop(job, None)

    def learn(self, kind: str, epochs: float) -> None:
        if kind:
            whole = [*self._whole.get(kind, ())[1 - MOST_LENGTHS :], epochs]
            set_bounded(self._whole, kind, whole, MAX_KINDS)

    def knows(self, kind: str) -> bool:
        """Returns whether a job of this kind has completed."""
        return kind in self._whole

    def left(self, kind: str, epochs: float) -> float | None:
        """Returns the remaining epochs after `epochs`; None if no job of the kind has completed."""
        whole = self._whole.get(kind)
        if not whole:
            return None
        longer = [length - epochs for length in whole if length > epochs]
        return float(np.mean(longer)) if longer else OVERTIME * epochs

    def furthest(self) -> dict[str, float]:
        """Returns the most epochs that a running job of each kind has done."""
        furthest: dict[str, float] = {}
        for kind, epochs in self._running.values():
            furthest[kind] = max(furthest.get(kind, 0.0), epochs)
        return furthest
