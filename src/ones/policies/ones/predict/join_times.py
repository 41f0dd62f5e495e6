"""Mean time until joining workers train, while the other workers of the job continue.

Meanwhile the new GPUs of the job are idle. The time is measured from the order of a rescale to its
end, without the pause; it is 0 before the first measurement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ones.core.job import JobId
from ones.policies.ones.predict.memory import Remembers

#: weight of the newest time in the mean
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
        self._since: dict[JobId, float] = {}  # time of the order, of jobs with joining workers

    def rescale_ordered(self, job: JobId, at: float, *, grows: bool) -> None:
        """Notes an order; `grows` if it adds GPUs that the job did not have."""
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
