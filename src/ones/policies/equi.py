"""Everybody gets the same: an equal share of the GPUs, with the batch that suits it best.

Knows nothing of lengths and is hard to beat when re-scaling is cheap. With more jobs
than GPUs, those that have had the least take turns. Touches everybody by design.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar

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
from ones.models.goodput import Goodput
from ones.models.packing import Room
from ones.models.patience import doubling
from ones.models.sharing import Claim, OwnerRoom, equal_shares

#: seconds that a job is left as it is after a change of it failed; twice as many each time
FIRST_REST, LONGEST_REST = 60.0, 3600.0


class Equi:
    decides_on: ClassVar[frozenset[type[Event]]] = PROGRESS_EVENTS
    native_mechanism: ClassVar[str] = "checkpoint"

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        quantum: float = field(
            default=120.0, metadata={"help": "seconds of a turn, when jobs outnumber GPUs"}
        )
        batch_growth: float = field(
            default=2.0, metadata={"help": "most that a batch grows from one epoch to the next"}
        )
        batch_gain: float = field(
            default=0.1, metadata={"help": "gain in speed that is worth changing only the batch"}
        )

        def __post_init__(self) -> None:
            for name, least in (("quantum", 1.0), ("batch_growth", 1.0), ("batch_gain", 0.0)):
                if not getattr(self, name) >= least:
                    raise ValueError(f"{name} {getattr(self, name)} is not at least {least}")

    def __init__(self, *, seed: int = 0, **settings: Any) -> None:
        self._settings = self.Settings(**settings)

        # batch at the end of each job's last epoch: growth within an epoch counts together
        self._epoch_batch: dict[JobId, int] = {}
        # until when a job is left as it is, and after how many changes that failed
        self._rests: dict[JobId, tuple[float, int]] = {}
        # what was found for a job of which nothing has changed since: most of them, at any event
        self._found: dict[JobId, tuple[JobView, tuple[Gpu, ...], int, Allocation]] = {}

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        if isinstance(event, EpochFinished):
            held = view.job(event.job).held
            if held is not None:
                self._epoch_batch[event.job] = held.batch
        elif isinstance(event, RescaleFailed):
            if event.job in view.jobs and view.job(event.job).wanted is not None:  # it goes on
                times = self._rests.get(event.job, (0.0, 0))[1] + 1
                self._rests[event.job] = (
                    view.now + doubling(FIRST_REST, LONGEST_REST, times),
                    times,
                )
        elif isinstance(event, Rescaled):
            if view.now >= self._rests.get(event.job, (inf, 0))[0]:  # the next try went well
                del self._rests[event.job]
        elif isinstance(event, JobEnded):
            self._epoch_batch.pop(event.job, None)
            self._found.pop(event.job, None)
            self._rests.pop(event.job, None)

    def decide(self, view: View) -> Decision:
        free_to_move = [job for job in view.jobs.values() if not job.pinned]
        resting = {job.id: job for job in free_to_move if self._rests_now(view, job)}
        jobs = [job for job in free_to_move if job.id not in resting]
        rested_at = min((self._rests[job][0] for job in resting), default=inf)
        kept = {job.id: self._kept(job) for job in resting.values()}
        if not jobs:
            return Decision(schedule=view.schedule, wake_at=rested_at, notes=kept)
        staying = {job.id: _on_healthy_nodes(view, job) for job in jobs}
        gpus = len(view.free) + sum(map(len, staying.values()))
        turns = len(jobs) > gpus
        shares = self._shares(view, jobs, gpus)
        places = Room(view).arrange(staying, shares)
        edit = view.schedule.edit()
        notes: dict[JobId, str] = kept
        crowd = f"{len(jobs)} {'job' if len(jobs) == 1 else 'jobs'} on {gpus} GPUs"
        for job in jobs:
            if job.id not in places:
                if job.wanted is not None:
                    edit.drop(job.id)
                notes[job.id] = f"waits for its turn: {crowd}"
                continue
            allocation = self._allocation(job, places[job.id])
            if allocation != job.wanted:
                edit.put(job.id, allocation)
                notes[job.id] = f"an equal share: {len(places[job.id])} of {gpus} GPUs, {crowd}"
        next_turn = view.now + self._settings.quantum if turns and gpus else inf
        return Decision(schedule=edit.done(), wake_at=min(next_turn, rested_at), notes=notes)

    def _rests_now(self, view: View, job: JobView) -> bool:
        return job.wanted is not None and view.now < self._rests.get(job.id, (0.0, 0))[0]

    def _kept(self, job: JobView) -> str:
        gpus = job.wanted.n_gpus if job.wanted else 0
        rest = doubling(FIRST_REST, LONGEST_REST, self._rests[job.id][1])
        return f"keeps {gpus} GPU{'s'[: gpus > 1]} for {rest:.0f} s: its last change failed"

    def _shares(self, view: View, jobs: list[JobView], gpus: int) -> dict[JobId, int]:
        """Equal for all; if there are too few, one each for those who have had the least."""
        turn = self._settings.quantum

        def place_in_line(job: JobView) -> tuple[float, int, bool, int]:
            # attained service counts in whole turns, so that nobody is sent away within one
            turns_had = int(job.gpu_seconds_at(view.now) / turn) if len(jobs) > gpus else 0
            return (-job.priority, turns_had, job.wanted is None, job.number)

        claims = [
            Claim(job.id, job.job.owner, job.job.min_gpus, _most(job))
            for job in sorted(jobs, key=place_in_line)
        ]
        return equal_shares(claims, gpus, OwnerRoom(view, jobs))

    def _allocation(self, job: JobView, gpus: tuple[Gpu, ...]) -> Allocation:
        if job.description is None:
            return Allocation.as_scripted(gpus)
        base = self._epoch_batch.get(job.id, 0) or job.description.base_batch
        found = self._found.get(job.id)
        if found is not None and found[0] is job and found[1:3] == (gpus, base):
            return found[3]
        allocation = self._best(job, gpus, most=int(base * self._settings.batch_growth))
        self._found[job.id] = (job, gpus, base, allocation)
        return allocation

    def _best(self, job: JobView, gpus: tuple[Gpu, ...], *, most: int) -> Allocation:
        goodput = Goodput(job)
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
            "rests": {job: list(rest) for job, rest in self._rests.items()},
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._epoch_batch = {JobId(job): int(n) for job, n in saved["epoch_batch"].items()}
        rests = saved.get("rests", {})  # earlier versions had none
        self._rests = {JobId(job): (float(at), int(times)) for job, (at, times) in rests.items()}


def _on_healthy_nodes(view: View, job: JobView) -> tuple[Gpu, ...]:
    held = job.wanted.gpus if job.wanted else ()
    return tuple(gpu for gpu in held if view.cluster.state_of(gpu) is NodeState.UP)


def _most(job: JobView) -> int:
    """Before it has joined, a job starts small: nothing is known of it."""
    if job.description is None:
        return job.job.min_gpus
    largest = job.description.dataset_size
    return largest if job.max_gpus is None else min(largest, job.max_gpus)
