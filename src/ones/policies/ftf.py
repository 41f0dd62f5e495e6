"""Finish-time fairness, after Themis (NSDI'20): GPUs go to the job that is treated worst.

The ratio of a job is its projected completion time here over that alone on an equal share of the
cluster. In rounds, one GPU after another goes to the job with the largest ratio, so the largest
ratio becomes as small as possible. Lengths are predicted, as Shockwave (NSDI'23) does, or known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, ClassVar

from ones.core import events as ev
from ones.core.events import Event
from ones.core.job import JobId
from ones.core.plan import PlanAdopted
from ones.core.view import JobView, View
from ones.models.marginal_gain import GainCandidate
from ones.models.oracle import ORACLE_NEEDED, Oracle
from ones.models.rigid_jobs import batch_of
from ones.models.settings import check_settings, setting
from ones.models.sizing_rounds import SizingRounds, Take

#: smaller improvements of a ratio are rounding errors
LEAST_GAIN = 1e-6
#: GPUs that a job may gain in one step: one more GPU may not pay for the change where four do
STEPS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class FairnessCandidate:
    """A job with what its ratio depends on."""

    work: GainCandidate
    age: float  # seconds since its submission
    alone: float  # projected completion time on an equal share
    gpus: int = 0  # at present
    change_seconds: float = 0.0  # cost of another size

    def ratio(self, gpus: int) -> float:
        """Projected completion time with this number of GPUs from now on, over that alone."""
        seconds = self.age + self.work.steps * self.work.step_seconds(gpus)
        if self.gpus and gpus != self.gpus:
            seconds += self.change_seconds
        return seconds / self.alone

    def next_size(self, gpus: int, left: int) -> int | None:
        """The next larger size that lowers the ratio; None if no step does."""
        now = self.ratio(gpus) - LEAST_GAIN
        for step in STEPS:
            more = gpus + step
            if step <= left and more <= self.work.most and self.ratio(more) < now:
                return more
        return None


class Ftf(SizingRounds):
    takes_oracle: ClassVar[bool] = True

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        interval: float = setting(60.0, "seconds between two rounds (the lease)", least=1.0)
        knowledge: str = setting(
            "fitted",
            "remaining work and speed: fitted to reports, or from an oracle",
            options=("fitted", "oracle"),
        )

        def __post_init__(self) -> None:
            check_settings(self)

    def __init__(self, *, seed: int = 0, oracle: Oracle | None = None, **settings: Any) -> None:
        self._settings = self.Settings(**settings)
        if self._settings.knowledge == "oracle" and oracle is None:
            raise ValueError(f"knowledge=oracle {ORACLE_NEEDED}")
        known = self._settings.knowledge == "oracle"
        super().__init__(self._settings.interval, oracle if known else None)
        self._job_seconds = 0.0  # unfinished jobs, integrated over time
        self._counted = (0.0, 0)  # up to this time; number since then
        self._begun: dict[JobId, float] = {}  # the integral at each submission

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        super().observe(event, view)
        if isinstance(event, ev.JobSubmitted | ev.JobEnded):
            self._job_seconds = self._integral(view.now)
            self._counted = (view.now, len(view.jobs))
            if isinstance(event, ev.JobSubmitted):
                self._begun[event.job.id] = self._job_seconds
            else:
                self._begun.pop(event.job, None)

    def _integral(self, now: float) -> float:
        at, count = self._counted
        return self._job_seconds + (now - at) * count

    def sizes(self, view: View, jobs: Sequence[JobView], gpus: int, take: Take) -> dict[JobId, int]:
        candidates = [self._candidate(view, job) for job in jobs]
        priorities = {job.id: job.priority for job in jobs}
        return fairest_sizes(candidates, gpus, take, priorities)

    def _candidate(self, view: View, job: JobView) -> FairnessCandidate:
        work = self.candidates.of(view, job)
        age = view.now - job.job.submitted_at
        present = float(len(view.jobs))
        if age > 0:  # the mean number of jobs while this one has been in the system
            begun = self._begun.get(job.id, 0.0)
            present = max(1.0, (self._integral(view.now) - begun) / age)
        share = view.cluster.n_gpus / present
        size = max(work.least, min(work.most, int(share)))
        done = job.progress.samples / max(1, batch_of(job, work.least))
        slower = max(1.0, work.least / share) if share else 1.0
        alone = (done + work.steps) * work.step_seconds(size) * slower
        gpus = job.wanted.n_gpus if job.wanted else 0
        cost = job.switch_cost.rescale_seconds
        return FairnessCandidate(work, age, max(alone, 1e-3), gpus, cost)

    def size_why(self, job: JobView, size: int) -> str:
        return "GPUs go to the jobs that are furthest behind an equal share"

    def wait_rule(self, job: JobView) -> str:
        return "jobs that are further behind an equal share come first"

    def save(self) -> dict[str, Any]:
        own = {
            "job_seconds": self._job_seconds,
            "counted": list(self._counted),
            "begun": dict(self._begun),
        }
        return super().save() | own

    def load(self, saved: Mapping[str, Any]) -> None:
        super().load(saved)
        self._job_seconds = float(saved["job_seconds"])
        self._counted = (float(saved["counted"][0]), int(saved["counted"][1]))
        self._begun = {JobId(job): float(at) for job, at in saved["begun"].items()}


def fairest_sizes(
    candidates: Sequence[FairnessCandidate],
    gpus: int,
    take: Take,
    priorities: Mapping[JobId, float],
) -> dict[JobId, int]:
    """The GPUs of each job: the minimum first, from the largest ratio; then one after another."""

    def worst_first(candidate: FairnessCandidate) -> tuple[float, float, int]:
        work = candidate.work
        return (-priorities.get(work.job, 0.0), -candidate.ratio(work.least), work.number)

    sizes: dict[JobId, int] = {}
    left = gpus
    queue: list[tuple[float, int, FairnessCandidate]] = []
    for candidate in sorted(candidates, key=worst_first):
        work = candidate.work
        if work.least <= left and take(work.owner, work.least):
            sizes[work.job] = work.least
            left -= work.least
            queue.append((-candidate.ratio(work.least), work.number, candidate))
    heapify(queue)
    while queue and left:
        _, number, candidate = heappop(queue)
        work = candidate.work
        size = candidate.next_size(sizes[work.job], left)
        if size is not None and take(work.owner, size - sizes[work.job]):
            left -= size - sizes[work.job]
            sizes[work.job] = size
            heappush(queue, (-candidate.ratio(size), number, candidate))
    return sizes
