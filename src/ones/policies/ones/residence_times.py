"""How long jobs are here as a rule: from their first start to their end.

By it the policy knows for how long a job will keep what it is given. Jobs come as often as they
go, and each that comes or goes may change all others: by Little's law as many come while one job
is here as there are jobs. So a fixed part of that time is right for jobs of minutes and of days.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ones.core.job import JobId
from ones.policies.ones.memory import Remembers

#: before anything is known: as if so many jobs had taken so many seconds
GUESSED_JOBS, GUESSED_SECONDS = 5.0, 400.0
#: of jobs that have ended, and of the time before that, about so many of the latest count
REMEMBERED = 200.0


class ResidenceTimes(Remembers):
    """
    >>> times = ResidenceTimes()
    >>> times.mean_seconds(0.0)
    400.0
    >>> times.started(JobId("a"), 0.0)
    >>> times.ended(JobId("a"), 1000.0)
    >>> times.mean_seconds(1000.0)
    500.0
    """

    memory: ClassVar[Mapping[str, Any]] = {
        "_here": set[JobId],
        "_spent": float,
        "_ended": float,
        "_at": float,
    }

    def __init__(self) -> None:
        self._here: set[JobId] = set()
        self._spent = 0.0  # seconds that jobs were here, until `_at`
        self._ended = 0.0
        self._at = 0.0

    def started(self, job: JobId, at: float) -> None:
        """The first time, or again."""
        if job not in self._here:
            self._pass_to(at)
            self._here.add(job)

    def ended(self, job: JobId, at: float) -> None:
        if job not in self._here:
            return  # it never ran
        kept = 1.0 - 1.0 / REMEMBERED
        self._spent *= kept
        self._pass_to(at)
        self._here.remove(job)
        self._ended = kept * self._ended + 1.0

    def _pass_to(self, at: float) -> None:
        self._spent, self._at = self._spent_until(at), max(at, self._at)

    def _spent_until(self, now: float) -> float:
        return self._spent + len(self._here) * max(0.0, now - self._at)

    def mean_seconds(self, now: float) -> float:
        """The time that jobs have been here, for each that has ended.

        Who is still here counts with the time so far, and not as a job: in a mean over all, those
        that have only begun would pass for short ones.
        """
        spent = GUESSED_JOBS * GUESSED_SECONDS + self._spent_until(now)
        return spent / (GUESSED_JOBS + self._ended)
