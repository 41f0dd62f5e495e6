"""How long it takes until newcomers train with a job that grows, while the others train on.

That costs no pause, but the GPUs which it grows by stand idle meanwhile. It is learned from the
time between an order and its fulfilment; until one has been seen it is taken for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ones.core.job import JobId
from ones.policies.ones.memory import Remembers

#: part of the mean that the newest one makes up
NEWEST = 0.2


class JoinTimes(Remembers):
    """
    >>> times = JoinTimes()
    >>> times.rescale_ordered(JobId("a"), 100.0, grows=True)
    >>> times.rescale_done(JobId("a"), 111.0, pause=1.0)
    >>> times.seconds
    2.0
    """

    memory: ClassVar[Mapping[str, Any]] = {
        "seconds": float,
        "_since": dict[JobId, float],
    }

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since: dict[JobId, float] = {}  # of whom somebody was ordered, and when

    def rescale_ordered(self, job: JobId, at: float, *, grows: bool) -> None:
        """`some`: it gets GPUs that it did not have."""
        if grows:
            self._since[job] = at
        else:
            self._since.pop(job, None)

    def rescale_done(self, job: JobId, at: float, pause: float) -> None:
        since = self._since.pop(job, None)
        if since is not None:
            self.seconds += NEWEST * (max(0.0, at - since - pause) - self.seconds)

    def forget(self, job: JobId) -> None:
        self._since.pop(job, None)
