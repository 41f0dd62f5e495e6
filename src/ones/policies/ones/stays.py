"""How long jobs have been as they are: whether that is long enough to change them again.

Every change stops a job for a while. Without rest, one that has made room for a newcomer takes
the GPUs of the next job that ends as soon as it trains again, and gives them up once more a
little later: where a change is a restart, the longest jobs stood still a tenth of their time.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from ones.core.cluster import Gpu
from ones.core.job import JobId, SwitchCost

#: what it was given a job keeps for so many times what a change costs it, up to so many seconds
STAY_FACTOR, MOST_STAY = 10.0, 120.0
#: and after a change of its GPUs it does not grow for so many times what that costs
REST_FACTOR = 4.0


class Stays:
    """
    >>> stays = Stays()
    >>> stays.started(JobId("a"), (Gpu("n0", 0),), 0.0)
    False
    >>> stays.may_grow(JobId("a"), SwitchCost(rescale_seconds=25.0), 10.0)
    True
    >>> stays.changed(JobId("a"), (Gpu("n0", 0), Gpu("n0", 1)), 10.0)
    False
    >>> stays.may_grow(JobId("a"), SwitchCost(rescale_seconds=25.0), 50.0)
    False
    """

    def __init__(self) -> None:
        self._gpus: dict[JobId, tuple[Gpu, ...]] = {}
        self._changed_at: dict[JobId, float] = {}  # in any way
        self._moved_at: dict[JobId, float] = {}  # to other GPUs than it had before
        self._started_at: dict[JobId, float] = {}  # the last time

    def announced(self, job: JobId, at: float) -> None:
        """It will be changed once others have left."""
        self._changed_at[job] = at

    def changed(self, job: JobId, gpus: tuple[Gpu, ...], at: float) -> bool:
        """Does it keep the GPUs that it had?"""
        before = self._gpus.get(job)
        self._changed_at[job] = at
        if before is not None and before != gpus:
            self._moved_at[job] = at
        self._gpus[job] = gpus
        return before == gpus

    def comes_to(self, job: JobId, gpus: tuple[Gpu, ...]) -> bool:
        """Would any of these GPUs be new to it?"""
        return not set(gpus) <= set(self._gpus.get(job, ()))

    def started(self, job: JobId, gpus: tuple[Gpu, ...], at: float) -> bool:
        self._started_at[job] = at
        return self.changed(job, gpus, at)

    def forget(self, job: JobId) -> None:
        for known in (self._gpus, self._changed_at, self._moved_at, self._started_at):
            known.pop(job, None)

    def may_shrink(self, job: JobId, cost: SwitchCost, now: float, *, least: float) -> bool:
        stay = max(least, min(MOST_STAY, STAY_FACTOR * cost.rescale_seconds))
        return now - self._changed_at.get(job, -inf) >= stay

    def may_grow(self, job: JobId, cost: SwitchCost, now: float) -> bool:
        return now - self._moved_at.get(job, -inf) >= REST_FACTOR * cost.rescale_seconds

    def may_stop(self, job: JobId, cost: SwitchCost, now: float, *, least: float) -> bool:
        """`least`: times what a restart costs."""
        return now - self._started_at.get(job, -inf) >= least * cost.restart_seconds

    def save(self) -> dict[str, Any]:
        return {
            "gpus": {job: [list(gpu) for gpu in gpus] for job, gpus in self._gpus.items()},
            "changed_at": dict(self._changed_at),
            "moved_at": dict(self._moved_at),
            "started_at": dict(self._started_at),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._gpus = {
            JobId(job): tuple(Gpu(node, int(index)) for node, index in gpus)
            for job, gpus in saved["gpus"].items()
        }
        self._changed_at = _times(saved["changed_at"])
        self._moved_at = _times(saved["moved_at"])
        self._started_at = _times(saved["started_at"])


def _times(saved: Mapping[str, Any]) -> dict[JobId, float]:
    return {JobId(job): float(at) for job, at in saved.items()}
