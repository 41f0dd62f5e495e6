"""What it costs a job to get another batch on the GPUs that it has.

That need not be what other GPUs cost: a script may change its batch between two steps and yet
restart for anything else. Until one has been seen it is taken to be cheap.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ones.core.cluster import Gpu
from ones.core.job import JobId

#: seconds, before the first
EXPECTED = 1.0
#: part of the mean that the newest one makes up
NEWEST = 0.2


class BatchChanges:
    """
    >>> changes = BatchChanges()
    >>> changes.ordered(JobId("a"), (Gpu("n0", 0),))
    >>> changes.made(JobId("a"), 25.0)  # other GPUs: says nothing
    >>> changes.ordered(JobId("a"), (Gpu("n0", 0),))
    >>> changes.made(JobId("a"), 6.0)
    >>> changes.seconds
    2.0
    """

    def __init__(self) -> None:
        self.seconds = EXPECTED
        self._gpus: dict[JobId, tuple[Gpu, ...]] = {}
        self._alone: set[JobId] = set()  # only their batch is being changed

    def ordered(self, job: JobId, gpus: tuple[Gpu, ...]) -> None:
        if self._gpus.get(job) == gpus:
            self._alone.add(job)
        else:
            self._alone.discard(job)
        self._gpus[job] = gpus

    def made(self, job: JobId, pause: float) -> None:
        if job in self._alone:
            self._alone.discard(job)
            self.seconds += NEWEST * (pause - self.seconds)

    def forget(self, job: JobId) -> None:
        self._gpus.pop(job, None)
        self._alone.discard(job)

    def save(self) -> dict[str, Any]:
        gpus = {job: [list(gpu) for gpu in held] for job, held in self._gpus.items()}
        return {"seconds": self.seconds, "gpus": gpus, "alone": sorted(self._alone)}

    def load(self, saved: Mapping[str, Any]) -> None:
        self.seconds = float(saved["seconds"])
        self._gpus = {
            JobId(job): tuple(Gpu(node, int(index)) for node, index in held)
            for job, held in saved["gpus"].items()
        }
        self._alone = {JobId(job) for job in saved["alone"]}
