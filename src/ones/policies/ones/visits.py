"""How long jobs are here as a rule: from their first start to their end.

By it the policy knows for how long a job will keep what it is given. Jobs come as often as they
go, and each that comes or goes may change all others: by Little's law as many come while one job
is here as there are jobs. So a fixed part of that time is right for jobs of minutes and of days.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ones.core.job import JobId

#: before anything is known: as if so many jobs had taken so many seconds
GUESSED_JOBS, GUESSED_SECONDS = 5.0, 400.0
#: of jobs that have ended, about so many of the latest count
REMEMBERED = 200.0


class Visits:
    def __init__(self) -> None:
        self._since: dict[JobId, float] = {}
        self._ended, self._seconds = 0.0, 0.0

    def started(self, job: JobId, at: float) -> None:
        self._since.setdefault(job, at)

    def ended(self, job: JobId, at: float) -> None:
        since = self._since.pop(job, None)
        if since is not None:
            kept = 1.0 - 1.0 / REMEMBERED
            self._ended = kept * self._ended + 1.0
            self._seconds = kept * self._seconds + at - since

    def usual_seconds(self, now: float) -> float:
        """Mean over jobs, of those that have ended and those that are here, as far as they are."""
        here = len(self._since) * now - sum(self._since.values())
        jobs = GUESSED_JOBS + self._ended + len(self._since)
        return (GUESSED_JOBS * GUESSED_SECONDS + self._seconds + here) / jobs

    def save(self) -> dict[str, Any]:
        return {"since": dict(self._since), "ended": self._ended, "seconds": self._seconds}

    def load(self, saved: Mapping[str, Any]) -> None:
        self._since = {JobId(job): float(at) for job, at in saved["since"].items()}
        self._ended, self._seconds = float(saved["ended"]), float(saved["seconds"])
