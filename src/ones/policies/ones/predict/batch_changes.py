"""Mean pause of batch changes on unchanged GPUs.

It differs from the pause of other rescales: a script may change its batch between two steps but
restart for a change of its GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ones.core.job import JobId
from ones.policies.ones.predict.memory import Remembers

#: seconds, before the first measurement
EXPECTED = 1.0
#: weight of the newest pause in the mean
NEWEST = 0.2


class BatchChanges(Remembers):
    """
    >>> changes = BatchChanges()
    >>> changes.rescale_ordered(JobId("a"), keeps_gpus=False)
    >>> changes.rescale_done(JobId("a"), 25.0)  # other GPUs: not counted
    >>> changes.rescale_ordered(JobId("a"), keeps_gpus=True)
    >>> changes.rescale_done(JobId("a"), 6.0)
    >>> changes.seconds
    2.0
    """

    memory: ClassVar[Mapping[str, Any]] = {
        "seconds": float,
        "_batch_only": set[JobId],
    }

    def __init__(self) -> None:
        self.seconds = EXPECTED
        self._batch_only: set[JobId] = set()  # rescales in progress that change only the batch

    def rescale_ordered(self, job: JobId, *, keeps_gpus: bool) -> None:
        """Notes an order; `keeps_gpus` if it changes only the batch."""
        if keeps_gpus:
            self._batch_only.add(job)
        else:
            self._batch_only.discard(job)

    def rescale_done(self, job: JobId, pause: float) -> None:
        if job in self._batch_only:
            self._batch_only.discard(job)
            self.seconds += NEWEST * (pause - self.seconds)

    def forget(self, job: JobId) -> None:
        self._batch_only.discard(job)
