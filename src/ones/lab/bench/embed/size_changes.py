"""Counts changes of the number of GPUs of jobs, and those that were taken back soon."""

from __future__ import annotations

from ones.core import JobId

#: a change is taken back if the job has its former number of GPUs within this time
SOON_SECONDS = 300.0


class SizeChanges:
    """
    >>> changes = SizeChanges()
    >>> for at, gpus in ((0.0, 2), (60.0, 4), (120.0, 4), (180.0, 2), (600.0, 4)):
    ...     changes.changed(JobId("a"), gpus, at)
    >>> changes.number, changes.taken_back
    (3, 1)
    """

    def __init__(self) -> None:
        self.number = 0  # of changes after the first start
        self.taken_back = 0
        self._sizes: dict[JobId, tuple[int | None, int, float]] = {}  # before, present, since

    def changed(self, job: JobId, gpus: int, at: float) -> None:
        """Notes the number of GPUs that a job has from now on; 0: it was preempted."""
        known = self._sizes.get(job)
        if known is None:
            self._sizes[job] = (None, gpus, at)
            return
        before, present, since = known
        if gpus == present:
            return  # other GPUs, or another batch
        self.number += 1
        self.taken_back += gpus == before and at - since <= SOON_SECONDS
        self._sizes[job] = (present, gpus, at)
