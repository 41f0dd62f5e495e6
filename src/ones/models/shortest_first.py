"""Common part of the oracles `srtf` and `srsf`: the job with the least work left runs first.

Both policies know how long every job will still take, which no real cluster does, and interrupt
long jobs for short ones. They differ in the unit of remaining work: seconds or GPU-seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ones.core.cluster import Gpu
from ones.core.view import JobView, View
from ones.models.oracle import ORACLE_NEEDED, Oracle
from ones.models.packing import GpuPool
from ones.models.preemptive_policy import PreemptivePolicy
from ones.models.rigid_jobs import Rank, batch_of, size_of
from ones.models.settings import setting


class ShortestFirst(PreemptivePolicy):
    takes_oracle: ClassVar[bool] = True
    follows_epochs: ClassVar[bool] = True
    counts_gpus: ClassVar[bool]  # True: work is measured in GPU-seconds, False: in seconds

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        count_restarts: bool = setting(
            True, "interrupt only if the time gained is more than a restart costs"
        )
        consolidate: bool = setting(True, "wait for the fewest nodes that a job fits on")

    def __init__(self, *, seed: int = 0, oracle: Oracle | None = None, **settings: Any) -> None:
        super().__init__()
        self._settings = self.Settings(**settings)
        if oracle is None:
            raise ValueError(ORACLE_NEEDED)
        self._oracle = oracle

    def remaining(self, job: JobView) -> float:
        """Remaining training of the job at its present or requested size."""
        size = _size(job)
        return self._work(self._oracle(job, size, batch_of(job, size)).seconds, size)

    def _restart(self, job: JobView) -> float:
        """Work that is lost when a job that has run is interrupted and resumed."""
        if not self._settings.count_restarts or job.started_at is None:
            return 0.0
        return self._work(job.switch_cost.restart_seconds, _size(job))

    def _work(self, seconds: float, size: int) -> float:
        return seconds * size if self.counts_gpus else seconds

    def waiting_key(self, job: JobView) -> tuple[int, Rank]:
        return 0, (-job.priority, self.remaining(job) + self._restart(job), job.number)

    def running_rank(self, job: JobView, now: float) -> Rank:
        # an interrupted job pays for its restart: interrupt only if r + restart < R
        return (-job.priority, self.remaining(job) - self._restart(job), job.number)

    def place(self, view: View, pool: GpuPool, job: JobView, size: int) -> tuple[Gpu, ...] | None:
        return pool.place_packed(size) if self._settings.consolidate else pool.place(size)


def _size(job: JobView) -> int:
    return size_of(job) if job.wanted is None else job.wanted.n_gpus
