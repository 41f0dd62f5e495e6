"""Limits the GPUs of a job after a failed rescale.

A rescale may fail because a worker did not start or because the engine rejects it; the event does
not say which. So half of the requested GPUs are allowed for some time, which grows each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ones.core.job import JobId
from ones.models.backoff import backoff_seconds
from ones.policies.ones.predict.memory import Remembers

FIRST_WAIT, LONGEST_WAIT = 300.0, 3600.0


@dataclass(frozen=True, slots=True)
class RescaleLimit:
    most: int  # largest number of GPUs
    until: float
    times: int


class FailedRescales(Remembers):
    memory: ClassVar[Mapping[str, Any]] = {
        "_requested": dict[JobId, int],
        "_limits": dict[JobId, RescaleLimit],
    }

    def __init__(self) -> None:
        self._requested: dict[JobId, int] = {}  # GPUs of the last order
        self._limits: dict[JobId, RescaleLimit] = {}

    def requested(self, job: JobId, gpus: int) -> None:
        self._requested[job] = gpus

    def failed(self, job: JobId, held: int, now: float) -> None:
        """Limits a job after a failed rescale; `held`: the GPUs that it keeps."""
        earlier = self._limits.get(job)
        times = earlier.times + 1 if earlier else 1
        wait = backoff_seconds(FIRST_WAIT, LONGEST_WAIT, times)
        most = max(1, held, self._requested.get(job, 1) // 2)
        self._limits[job] = RescaleLimit(most, now + wait, times)

    def succeeded(self, job: JobId) -> None:
        """Removes the limit if the job has reached more GPUs than the limit."""
        limit = self._limits.get(job)
        if limit is not None and self._requested.get(job, 0) > limit.most:
            del self._limits[job]

    def gpu_limit(self, job: JobId, now: float) -> int | None:
        limit = self._limits.get(job)
        return limit.most if limit is not None and now < limit.until else None

    def forget(self, job: JobId) -> None:
        self._requested.pop(job, None)
        self._limits.pop(job, None)
