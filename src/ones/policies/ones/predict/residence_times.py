"""Mean residence time of jobs: from their first start to their end.

The policy uses it to estimate how long a job keeps its GPUs. By Little's law, as many jobs arrive
during the residence of a job as there are jobs, and each arrival may change all others; so the
expected time is a fixed share of the residence time, for jobs of minutes and of days.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ones.core.job import JobId
from ones.policies.ones.predict.memory import Remembers

#: prior: this many jobs of this many seconds
GUESSED_JOBS, GUESSED_SECONDS = 5.0, 400.0
#: last ended jobs that count, about
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
        self._spent = 0.0  # residence of all jobs until `_at`, in seconds
        self._ended = 0.0
        self._at = 0.0

    def started(self, job: JobId, at: float) -> None:
        """Notes a start; a restart changes nothing."""
        if job not in self._here:
            self._pass_to(at)
            self._here.add(job)

    def ended(self, job: JobId, at: float) -> None:
        if job not in self._here:
            return  # the job never ran
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
        """Returns the total residence time of all jobs, divided by the number of ended jobs.

        Running jobs count with their time so far but not as jobs: new jobs would count as short.
        """
        spent = GUESSED_JOBS * GUESSED_SECONDS + self._spent_until(now)
        return spent / (GUESSED_JOBS + self._ended)
