"""Equal shares: every job gets the same number of GPUs, with its best batch.

It knows nothing of lengths and is hard to beat when rescaling is cheap. With more jobs than GPUs,
those with the least attained service take turns. Every decision considers all jobs, by design.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from ones.core import reasons
from ones.core.cluster import Gpu, NodeState
from ones.core.events import (
    PROGRESS_EVENTS,
    EpochFinished,
    Event,
    JobEnded,
    Rescaled,
    RescaleFailed,
)
from ones.core.job import JobId
from ones.core.plan import PlanAdopted
from ones.core.policy import Decision
from ones.core.schedule import Allocation
from ones.core.view import JobView, View
from ones.models.backoff import backoff_seconds
from ones.models.goodput import SimpleGoodput
from ones.models.packing import GpuPool
from ones.models.settings import check_settings, setting
from ones.models.sharing import OwnerQuota, ShareRequest, equal_shares

#: seconds without a change after a failed rescale; doubled each time
FIRST_BACKOFF, LONGEST_BACKOFF = 60.0, 3600.0


class Equi:
    decides_on: ClassVar[frozenset[type[Event]]] = PROGRESS_EVENTS
    native_mechanism: ClassVar[str] = "checkpoint"

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        quantum: float = setting(
            120.0, "seconds of a turn, if there are more jobs than GPUs", least=1.0
        )
        batch_growth: float = setting(
            2.0, "maximum growth of the batch per epoch, as a factor", least=1.0
        )
        batch_gain: float = setting(
            0.1, "minimum gain in goodput for a change of the batch alone", least=0.0
        )
        tolerance: float = setting(
            0.0,
            "a running job keeps its GPUs while its share differs by at most this part of them",
            least=0.0,
        )

        def __post_init__(self) -> None:
            check_settings(self)

    def __init__(self, *, seed: int = 0, **settings: Any) -> None:
        self._settings = self.Settings(**settings)
        # batch at the end of each job's last epoch: the limit of growth is per epoch
        self._epoch_batch: dict[JobId, int] = {}
        # end of a job's backoff, and its number of failures
        self._backoffs: dict[JobId, tuple[float, int]] = {}
        # allocations of jobs that have not changed since: most of them, at any event
        self._cache: dict[JobId, tuple[JobView, tuple[Gpu, ...], int, Allocation]] = {}

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        if isinstance(event, EpochFinished):
            held = view.job(event.job).held
            if held is not None:
                self._epoch_batch[event.job] = held.batch
        elif isinstance(event, RescaleFailed):
            if event.job in view.jobs and view.job(event.job).wanted is not None:  # it continues
                failures = self._backoffs.get(event.job, (0.0, 0))[1] + 1
                self._backoffs[event.job] = (
                    view.now + backoff_seconds(FIRST_BACKOFF, LONGEST_BACKOFF, failures),
                    failures,
                )
        elif isinstance(event, Rescaled):
            if view.now >= self._backoffs.get(event.job, (inf, 0))[0]:  # the next attempt succeeded
                del self._backoffs[event.job]
        elif isinstance(event, JobEnded):
            self._epoch_batch.pop(event.job, None)
            self._cache.pop(event.job, None)
            self._backoffs.pop(event.job, None)

    def decide(self, view: View) -> Decision:
        movable = [job for job in view.jobs.values() if not job.pinned]
        backing_off = {job.id: job for job in movable if self._is_backing_off(view, job)}
        jobs = [job for job in movable if job.id not in backing_off]
        backoff_ends = min((self._backoffs[job][0] for job in backing_off), default=inf)
        notes = {
            job.id: reasons.keeps_after_failure(job.wanted.n_gpus)
            for job in backing_off.values()
            if job.wanted is not None
        }
        if not jobs:
            return Decision(schedule=view.schedule, wake_at=backoff_ends, notes=notes)
        staying = {job.id: _on_healthy_nodes(view, job) for job in jobs}
        gpus = len(view.free) + sum(map(len, staying.values()))
        turns = len(jobs) > gpus
        places = self._places(view, jobs, staying, gpus)
        edit = view.schedule.edit()
        why = reasons.equal_share(gpus, len(jobs))
        for job in jobs:
            if job.id not in places:
                notes[job.id] = reasons.waiting_for_turn(self._settings.quantum)
                if job.wanted is not None:
                    edit.drop(job.id)
                    notes[job.id] = reasons.preempted(reasons.takers(job.wanted.gpus, places))
                continue
            allocation = self._allocation(job, places[job.id])
            if allocation != job.wanted:
                edit.put(job.id, allocation)
                notes[job.id] = reasons.changed(job.wanted, allocation, why)
        next_turn = view.now + self._settings.quantum if turns and gpus else inf
        return Decision(schedule=edit.done(), wake_at=min(next_turn, backoff_ends), notes=notes)

    def _is_backing_off(self, view: View, job: JobView) -> bool:
        return job.wanted is not None and view.now < self._backoffs.get(job.id, (0.0, 0))[0]

    def _places(
        self, view: View, jobs: list[JobView], staying: Mapping[JobId, tuple[Gpu, ...]], gpus: int
    ) -> dict[JobId, tuple[Gpu, ...]]:
        shares = self._shares(view, jobs, gpus)
        kept = {job.id for job in jobs if self._keeps(job, staying[job.id], shares)}
        others = [job for job in jobs if job.id not in kept]
        left = gpus - sum(len(staying[job]) for job in kept)
        # without GPUs for all that wait, equal shares come first
        if kept and sum(job.job.min_gpus for job in others) <= left:
            shares = self._shares(view, others, left)
            shares |= {job: len(staying[job]) for job in kept}
        return GpuPool(view).arrange(staying, shares)

    def _keeps(self, job: JobView, gpus: tuple[Gpu, ...], shares: Mapping[JobId, int]) -> bool:
        """Whether a job keeps its size, because its share is not far from it."""
        if not self._settings.tolerance or job.wanted is None or gpus != job.wanted.gpus:
            return False
        return abs(shares.get(job.id, 0) - len(gpus)) <= self._settings.tolerance * len(gpus)

    def _shares(self, view: View, jobs: list[JobView], gpus: int) -> dict[JobId, int]:
        """Equal shares; with too few GPUs, for the jobs with the least attained service."""
        turn = self._settings.quantum

        def order(job: JobView) -> tuple[float, int, bool, int]:
            # attained service counts in whole turns, so that no job is preempted within one
            turns_served = int(job.gpu_seconds_at(view.now) / turn) if len(jobs) > gpus else 0
            return (-job.priority, turns_served, job.wanted is None, job.number)

        requests = [
            ShareRequest(job.id, job.job.owner, job.job.min_gpus, _max_gpus(job))
            for job in sorted(jobs, key=order)
        ]
        return equal_shares(requests, gpus, OwnerQuota(view, jobs))

    def _allocation(self, job: JobView, gpus: tuple[Gpu, ...]) -> Allocation:
        if job.description is None:
            return Allocation.as_scripted(gpus)
        base = self._epoch_batch.get(job.id, 0) or job.description.base_batch
        cached = self._cache.get(job.id)
        if cached is not None and cached[0] is job and cached[1:3] == (gpus, base):
            return cached[3]
        allocation = self._best(job, gpus, most=int(base * self._settings.batch_growth))
        self._cache[job.id] = (job, gpus, base, allocation)
        return allocation

    def _best(self, job: JobView, gpus: tuple[Gpu, ...], *, most: int) -> Allocation:
        goodput = SimpleGoodput(job)
        nodes = len({gpu.node for gpu in gpus})
        now = job.wanted.batch if job.wanted else 0
        best = goodput.best_batch(len(gpus), nodes, at_most=most)
        if job.wanted is not None and job.wanted.gpus == gpus:
            gain = goodput.at(len(gpus), nodes, best) / goodput.at(len(gpus), nodes, now)
            if gain < 1 + self._settings.batch_gain:
                return job.wanted
        return Allocation.even(gpus, best, job.local_limit)

    def save(self) -> dict[str, Any]:
        return {
            "epoch_batch": dict(self._epoch_batch),
            "rests": {job: list(backoff) for job, backoff in self._backoffs.items()},
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._epoch_batch = {JobId(job): int(n) for job, n in saved["epoch_batch"].items()}
        backoffs = saved.get("rests", {})  # absent in older snapshots
        self._backoffs = {JobId(job): (float(end), int(n)) for job, (end, n) in backoffs.items()}


def _on_healthy_nodes(view: View, job: JobView) -> tuple[Gpu, ...]:
    held = job.wanted.gpus if job.wanted else ()
    return tuple(gpu for gpu in held if view.cluster.state_of(gpu) is NodeState.UP)


def _max_gpus(job: JobView) -> int:
    """Maximum GPUs; the minimum before the job has joined, because nothing is known of it."""
    if job.description is None:
        return job.job.min_gpus
    largest = job.description.dataset_size
    return largest if job.max_gpus is None else min(largest, job.max_gpus)
