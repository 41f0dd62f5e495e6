"""How long completed jobs of a kind were, and how far those that run have got.

The Beta regression sees what a job looks like; that jobs of a kind are of much the same
length it learns slowly. Here the lengths themselves are kept: what is left of a job, of
which so much is done, is what was left of those that got as far.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ones.core.job import JobId
from ones.models.bounded_table import MAX_KINDS, set_bounded
from ones.policies.ones.memory import Remembers

#: lengths remembered of a kind, the last ones
MOST_LENGTHS = 50
#: of a job that has outlived all of its kind: this part of what it has done is still to come
OVERTIME = 0.1
#: a kind of which nobody has completed: the one furthest on has as much again before it
AS_MUCH_AGAIN = 2.0


class KindLengths(Remembers):
    """In epochs (of effective samples), for kinds that have a name."""

    memory: ClassVar[Mapping[str, Any]] = {
        "_lengths": dict[str, list[float]],
        "_running": dict[JobId, tuple[str, float]],
    }

    def __init__(self) -> None:
        self._lengths: dict[str, list[float]] = {}
        self._running: dict[JobId, tuple[str, float]] = {}

    def record(self, job: JobId, kind: str, epochs: float) -> None:
        if kind:
            self._running[job] = (kind, epochs)

    def ended(self, job: JobId) -> None:
        self._running.pop(job, None)

    def learn(self, kind: str, epochs: float) -> None:
        if kind:
            whole = [*self._lengths.get(kind, ())[1 - MOST_LENGTHS :], epochs]
            set_bounded(self._lengths, kind, whole, MAX_KINDS)

    def knows(self, kind: str) -> bool:
        """Has one of them completed?"""
        return kind in self._lengths

    def left(self, kind: str, epochs: float) -> float | None:
        """Epochs to come after so many; None if none of its kind has completed."""
        whole = self._lengths.get(kind)
        if not whole:
            return None
        longer = [length - epochs for length in whole if length > epochs]
        return float(np.mean(longer)) if longer else OVERTIME * epochs

    def furthest(self) -> dict[str, float]:
        """The most epochs that a running job of each kind has done."""
        furthest: dict[str, float] = {}
        for kind, epochs in self._running.values():
            furthest[kind] = max(furthest.get(kind, 0.0), epochs)
        return furthest
