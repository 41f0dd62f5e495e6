"""Policies that choose the size of every job, in rounds; the batch is the user's.

A subclass divides the GPUs among jobs (`sizes`). This class finds the jobs that may change, gives
GPUs by size, and starts jobs on idle GPUs between two rounds. With an interval of 0 every event is
a round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from math import inf
from typing import Any, ClassVar

from ones.core import reasons
from ones.core.cluster import Gpu, NodeState
from ones.core.events import CAPACITY_EVENTS, Event
from ones.core.job import JobId
from ones.core.lifecycle import Phase
from ones.core.plan import PlanAdopted
from ones.core.policy import Decision
from ones.core.view import JobView, View
from ones.models.gain_candidates import CandidateMaker
from ones.models.loss_estimates import LossEstimates
from ones.models.oracle import Oracle
from ones.models.packing import GpuPool
from ones.models.rigid_jobs import allocation_of
from ones.models.rounds import RoundClock
from ones.models.sharing import OwnerQuota

#: seconds until jobs that are being changed are considered again, where every event is a round
RETRY_SECONDS = 5.0
MAX_NOTES = 100  # waiting jobs that get a note

#: takes GPUs for an owner; False if that exceeds the owner's limit
Take = Callable[[str, int], bool]


class SizingRounds:
    decides_on: ClassVar[frozenset[type[Event]]] = CAPACITY_EVENTS
    native_mechanism: ClassVar[str] = "checkpoint"

    def __init__(self, interval: float, oracle: Oracle | None = None) -> None:
        # the limits of Optimus: its loss curve is the fallback
        self.estimates = LossEstimates(flat_change=0.05, flat_epochs=10, most_epochs=100)
        self.candidates = CandidateMaker(self.estimates, oracle, kinds_first=True)
        self._rounds = RoundClock(interval) if interval else None

    # for subclasses

    def sizes(self, view: View, jobs: Sequence[JobView], gpus: int, take: Take) -> dict[JobId, int]:
        """The GPUs of each job that gets any; jobs are by priority, then by submission."""
        raise NotImplementedError

    def size_why(self, job: JobView, size: int) -> str:
        """Why the job gets this number of GPUs, as the end of a sentence."""
        raise NotImplementedError

    def wait_rule(self, job: JobView) -> str:
        """Which jobs come first, as the end of a sentence."""
        raise NotImplementedError

    # common to all

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        if self._rounds is not None:
            self._rounds.observe(event, view)
        if not isinstance(event, PlanAdopted):
            self.estimates.observe(event, view)

    def decide(self, view: View) -> Decision:
        if not view.jobs:
            return Decision(schedule=view.schedule)
        wake_at = self._rounds.wake_at(view) if self._rounds else inf
        running = running_jobs(view) if self._rounds is None or self._rounds.due else []
        if self._rounds is None and any(job.pinned and _changes(job) for job in running):
            wake_at = view.now + RETRY_SECONDS
        movable = [job for job in running if not job.pinned]
        staying = {job.id: usable_gpus(view, job) for job in movable}
        gpus = len(view.free) + sum(map(len, staying.values()))
        waiting = list(islice(view.waiting, gpus))
        jobs = sorted([*movable, *waiting], key=lambda job: (-job.priority, job.number))
        sizes = self.sizes(view, jobs, gpus, OwnerQuota(view, movable).take) if jobs else {}
        places = GpuPool(view).arrange({job.id: staying.get(job.id, ()) for job in jobs}, sizes)
        edit = view.schedule.edit()
        notes: dict[JobId, str] = {}
        for job in jobs:
            if job.id not in places:
                if job.wanted is not None:
                    edit.drop(job.id)
                    notes[job.id] = reasons.preempted(reasons.takers(job.wanted.gpus, places))
            elif job.wanted is None or job.wanted.gpus != places[job.id]:
                allocation = allocation_of(job, places[job.id])
                edit.put(job.id, allocation)
                why = self.size_why(job, allocation.n_gpus)
                notes[job.id] = reasons.changed(job.wanted, allocation, why)
        for job in islice(view.waiting, MAX_NOTES):
            if job.id not in places:
                rule = self.wait_rule(job)
                notes[job.id] = reasons.waiting_by_rule(rule, job.job.min_gpus)
        return Decision(schedule=edit.done(), wake_at=wake_at, notes=notes)

    def save(self) -> dict[str, Any]:
        rounds = self._rounds.save() if self._rounds is not None else None
        return {"rounds": rounds, "estimates": self.estimates.save()}

    def load(self, saved: Mapping[str, Any]) -> None:
        self.estimates.load(saved["estimates"])
        if self._rounds is not None:
            self._rounds.load(saved["rounds"])


def running_jobs(view: View) -> list[JobView]:
    return [view.job(job) for job in view.schedule]


def usable_gpus(view: View, job: JobView) -> tuple[Gpu, ...]:
    """The job's GPUs that are not draining or cordoned."""
    assert job.wanted is not None
    return tuple(g for g in job.wanted.gpus if view.cluster.state_of(g) is NodeState.UP)


def _changes(job: JobView) -> bool:
    return job.phase not in (Phase.RUNNING, Phase.WAITING)
