"""Limits of the authors' prototype, in GPUs: M_j, the offer Q_j and the size W_j to resume with.

Section numbers of the prototype's rules are in docs/paper.md, "The prototype".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import floor
from statistics import median
from typing import Any

from ones.core.job import JobId
from ones.core.view import JobView

#: a job may hold this multiple of its requested GPUs while others can use them (A16)
REQUESTED = 4
#: run times of ended jobs that are kept
ENDED_JOBS = 1000


@dataclass(slots=True)
class JobLimits:
    """The limits and counted epochs of one job."""

    most: int = 1  # M_j
    resume: int = 1  # W_j
    epochs: int = 0  # e_j; the evaluation before training counts as one
    changed: int = 0  # ℓ_j: e_j when the schedule changed last


class GpuLimits:
    """M, Q, W, e and ℓ of every unfinished job."""

    def __init__(self, *, capped: bool) -> None:
        self._capped = capped  # A16: M_j <= C and Q_j <= 4 x requested; A64: neither
        self._jobs: dict[JobId, JobLimits] = {}
        self._run_seconds: dict[JobId, float] = {}  # T_j of jobs that have ended
        self._offers: dict[JobId, int] = {}

    def of(self, job: JobId) -> JobLimits:
        return self._jobs.setdefault(job, JobLimits())

    # epochs

    def reported(self, job: JobId) -> None:
        """The job trains, so it has been evaluated once."""
        limits = self.of(job)
        limits.epochs = max(limits.epochs, 1)

    def finished_epoch(self, job: JobView, samples: int) -> None:
        """A cut epoch counts if at least half of it was done."""
        self.reported(job.id)
        size = job.description.dataset_size if job.description else 0
        if 2 * samples >= size:
            self.of(job.id).epochs += 1

    def is_executed(self, job: JobId) -> bool:
        """e_j >= 2: predicted, and free to grow."""
        return self.of(job).epochs >= 2

    def deployed(self, jobs: Iterable[JobId]) -> None:
        """All workers of a changed schedule run: ℓ_j <- e_j of all its jobs."""
        for job in jobs:
            self.of(job).changed = self.of(job).epochs

    def may_change(self, job: JobId) -> bool:
        """The job has done an epoch since any change."""
        return self.of(job).epochs >= self.of(job).changed + 1

    # sizes

    def stopped(self, job: JobId) -> None:
        self.of(job).resume = self.of(job).most  # W_j <- M_j

    def rejected(self, job: JobId) -> None:
        """Every iteration with an open gate halves W_j of a stopped job that has no place."""
        limits = self.of(job)
        if limits.resume > 1:
            limits.resume //= 2
            limits.most = limits.resume

    def offer(self, jobs: Sequence[JobView], gpus: int, now: float) -> None:
        """Scale up every running job with e_j >= 2, then scale down at most one.

        `jobs`: all unfinished ones; T_med is the median over all jobs that have ever started.
        """
        self._offers = {}
        executed = [job for job in jobs if self.is_executed(job.id) and job.wanted is not None]
        started = [job for job in jobs if job.started_at is not None]
        times = [*self._run_seconds.values(), *(job.run_seconds_at(now) for job in started)]
        for job in executed:
            limits = self.of(job.id)
            held = job.wanted.n_gpus if job.wanted else 0
            if held == limits.most:
                limits.most = min(2 * held, gpus) if self._capped else 2 * held
            allowed = REQUESTED * job.job.requested_gpus if self._capped else limits.most
            self._offers[job.id] = min(limits.most, allowed)
        if not executed:
            return
        largest = max(
            executed, key=lambda job: (job.wanted.n_gpus if job.wanted else 0, -job.number)
        )
        held = largest.wanted.n_gpus if largest.wanted else 0
        usual, own = median(times), largest.run_seconds_at(now)
        if held >= gpus // 2 and own > usual > 0:
            size = max(1, floor(2 * held / (own / usual + 1)))
            self._offers[largest.id] = size + size % 2

    def now(self, job: JobView) -> int:
        """Q_j: the offer, or the GPUs held; W_j of a stopped job; 0 before the first start."""
        if job.wanted is not None:
            return self._offers.get(job.id, job.wanted.n_gpus)
        return self.of(job.id).resume if job.started_at is not None else 0

    def forget(self, job: JobId, run_seconds: float | None) -> None:
        self._jobs.pop(job, None)
        self._offers.pop(job, None)
        if run_seconds is not None:
            self._run_seconds[job] = run_seconds
        while len(self._run_seconds) > ENDED_JOBS:
            del self._run_seconds[next(iter(self._run_seconds))]

    def save(self) -> dict[str, Any]:
        return {
            "jobs": {job: asdict(limits) for job, limits in self._jobs.items()},
            "run_seconds": dict(self._run_seconds),
            "offers": dict(self._offers),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._jobs = {JobId(job): JobLimits(**limits) for job, limits in saved["jobs"].items()}
        self._run_seconds = {JobId(job): float(s) for job, s in saved["run_seconds"].items()}
        self._offers = {JobId(job): int(n) for job, n in saved["offers"].items()}


def batch_of(job: JobView, gpus: int) -> int:
    """The base batch on each GPU, up to the user's largest batch, which more GPUs share.

    0: the script's own, before it has joined.
    """
    if job.description is None:
        return 0
    base = job.description.base_batch
    if job.job.requested_batch is not None:
        base = max(1, job.job.requested_batch // job.job.requested_gpus)
    largest = min(job.job.max_batch or job.description.dataset_size, job.description.dataset_size)
    return min(gpus * base, max(gpus, largest // gpus * gpus))
