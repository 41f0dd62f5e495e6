"""What the world has refused: a job that could not be brought to a size is not asked again at
once, nor for as much.

A change may fail because a worker did not come up, or because whoever carries plans out
allows no such step. Nobody says which, so what is asked for is halved and the next attempt
waits, each time for longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ones.core.job import JobId
from ones.models.backoff import backoff_seconds
from ones.policies.ones.memory import Remembers

FIRST_WAIT, LONGEST_WAIT = 300.0, 3600.0


@dataclass(frozen=True, slots=True)
class Refusal:
    most: int  # GPUs that may be asked for until then
    until: float
    times: int


class Refusals(Remembers):
    memory: ClassVar[Mapping[str, Any]] = {
        "_asked": dict[JobId, int],
        "_refused": dict[JobId, Refusal],
    }

    def __init__(self) -> None:
        self._asked: dict[JobId, int] = {}  # GPUs that the last order was for
        self._refused: dict[JobId, Refusal] = {}

    def asked(self, job: JobId, gpus: int) -> None:
        self._asked[job] = gpus

    def refused(self, job: JobId, held: int, now: float) -> None:
        """`held`: what it goes on with."""
        before = self._refused.get(job)
        times = before.times + 1 if before else 1
        wait = backoff_seconds(FIRST_WAIT, LONGEST_WAIT, times)
        most = max(1, held, self._asked.get(job, 1) // 2)
        self._refused[job] = Refusal(most, now + wait, times)

    def granted(self, job: JobId) -> None:
        """It came to what was asked for: only how often it failed is remembered until then."""
        refusal = self._refused.get(job)
        if refusal is not None and self._asked.get(job, 0) > refusal.most:
            del self._refused[job]

    def most(self, job: JobId, now: float) -> int | None:
        refusal = self._refused.get(job)
        return refusal.most if refusal is not None and now < refusal.until else None

    def forget(self, job: JobId) -> None:
        self._asked.pop(job, None)
        self._refused.pop(job, None)
