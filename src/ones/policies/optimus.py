"""Optimus (EuroSys'18): in rounds, each GPU goes to the job where it saves the most time.

The remaining epochs of a job come from a curve fitted to its losses, its speed from a fit to step
times (`knowledge=fitted`), or both from an oracle. Every job gets its minimum; then one GPU
after another goes to the job that gains most. The batch is the user's and does not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil, floor
from typing import Any, ClassVar

from ones.core import reasons
from ones.core.cluster import Gpu
from ones.core.events import CAPACITY_EVENTS, Event, Woke
from ones.core.job import JobId
from ones.core.plan import PlanAdopted, Start
from ones.core.policy import Decision
from ones.core.schedule import ScheduleEdit
from ones.core.view import JobView, View
from ones.models.even_placement import EvenPlacement
from ones.models.gain_candidates import CandidateMaker
from ones.models.loss_estimates import LossEstimates
from ones.models.marginal_gain import GainCandidate, marginal_gains
from ones.models.oracle import ORACLE_NEEDED, Oracle
from ones.models.packing import GpuPool
from ones.models.rigid_jobs import allocation_of, size_of
from ones.models.settings import check_settings, setting
from ones.models.sharing import OwnerQuota
from ones.models.sizing_rounds import running_jobs, usable_gpus

RETRY_SECONDS = 5.0
MAX_NOTES = 100  # waiting jobs that get a note


class Optimus:
    decides_on: ClassVar[frozenset[type[Event]]] = CAPACITY_EVENTS
    native_mechanism: ClassVar[str] = "checkpoint"
    takes_oracle: ClassVar[bool] = True

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        knowledge: str = setting(
            "fitted",
            "remaining work and speed: fitted to reports, or from an oracle",
            options=("fitted", "oracle"),
        )
        interval: float = setting(600.0, "seconds between two rounds", least=1)
        idle_start: str = setting(
            "greedy",
            "idle GPUs for waiting jobs between rounds: as many as save time (greedy),"
            " as requested, or one; off: none",
            options=("greedy", "requested", "one", "off"),
        )
        pause_all: bool = setting(
            False, "restart all jobs from a checkpoint at each round, not only changed ones"
        )
        lookahead: bool = setting(False, "consider whole nodes as well as one more GPU")
        placement: str = setting(
            "even",
            "of jobs that change: even (over the fewest nodes), or stay (keep as many"
            " GPUs as possible)",
            options=("even", "stay"),
        )
        flat_change: float = setting(0.05, "change of the loss below which it counts as flat ...")
        flat_epochs: int = setting(10, "... over this number of epochs", least=1)
        most_epochs: int = setting(
            100, "maximum predicted epochs; a curve that is not flat by then is not used", least=1
        )
        min_local_batch: int = setting(1, "minimum samples per GPU", least=1)

        def __post_init__(self) -> None:
            check_settings(self)
            if not self.flat_change > 0:
                raise ValueError(f"flat_change {self.flat_change} is not above 0")

    def __init__(self, *, seed: int = 0, oracle: Oracle | None = None, **settings: Any) -> None:
        self._settings = self.Settings(**settings)
        if self._settings.knowledge == "oracle" and oracle is None:
            raise ValueError(f"knowledge=oracle {ORACLE_NEEDED}")
        self._estimates = LossEstimates(
            flat_change=self._settings.flat_change,
            flat_epochs=self._settings.flat_epochs,
            most_epochs=self._settings.most_epochs,
        )
        self._candidates = CandidateMaker(
            self._estimates,
            oracle if self._settings.knowledge == "oracle" else None,
            min_local_batch=self._settings.min_local_batch,
        )
        self._next_round = 0.0
        self._stage = ""  # "round": now; "pausing": all jobs are being stopped for it

    # events

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        if isinstance(event, PlanAdopted):
            if any(isinstance(action, Start) for action in event.plan.actions):
                self._stage = ""
            return
        if self._stage == "round" and not self._settings.pause_all:
            self._stage = ""  # it was held after the previous event
        self._estimates.observe(event, view)
        if type(event) in self.decides_on or self._stage == "pausing":
            self._update_round(event, view)

    def _update_round(self, event: Event, view: View) -> None:
        """Rounds are at multiples of the interval, while there are jobs."""
        interval = self._settings.interval
        if self._stage == "pausing":
            if view.n_waiting + view.n_blocked == len(view.jobs):
                self._stage = "round"  # all jobs are stopped
            return
        if not view.jobs:
            self._stage = ""
        late = view.now > self._next_round and not isinstance(event, Woke)
        if late:
            self._next_round = ceil(view.now / interval) * interval
        if view.now >= self._next_round:
            self._next_round = (floor(view.now / interval) + 1) * interval
            running = len(view.schedule) > 0
            self._stage = "pausing" if self._settings.pause_all and running else "round"

    # decisions

    def decide(self, view: View) -> Decision:
        if not view.jobs:
            return Decision(schedule=view.schedule)
        edit = view.schedule.edit()
        notes: dict[JobId, str] = {}
        wake_at = max(self._next_round, view.now + 1e-3)
        if self._stage == "pausing":
            for job in running_jobs(view):
                if not job.pinned:
                    edit.drop(job.id)
                    notes[job.id] = reasons.PAUSED_FOR_ROUND
            wake_at = min(wake_at, view.now + RETRY_SECONDS)
        elif self._stage == "round":
            self._hold_round(view, edit, notes)
        elif self._settings.idle_start != "off":
            self._start_idle(view, edit, notes)
        for job in islice(view.waiting, MAX_NOTES):
            if edit.get(job.id) is None and job.id not in notes:
                notes[job.id] = reasons.waiting_for_round(self._next_round, job.job.min_gpus)
        return Decision(schedule=edit.done(), wake_at=wake_at, notes=notes)

    def _hold_round(self, view: View, edit: ScheduleEdit, notes: dict[JobId, str]) -> None:
        running = [job for job in running_jobs(view) if not job.pinned]
        staying = {job.id: usable_gpus(view, job) for job in running}
        gpus = len(view.free) + sum(map(len, staying.values()))
        jobs = sorted(
            [*running, *islice(view.waiting, gpus)], key=lambda job: (-job.priority, job.number)
        )
        owners = OwnerQuota(view, running)
        jump = view.cluster.width if self._settings.lookahead else 0
        candidates = {job.id: self._candidates.of(view, job) for job in jobs}
        sizes = marginal_gains(candidates.values(), gpus, owners.take, jump=jump)
        places = self._places(view, jobs, staying, sizes)
        for job in jobs:
            if job.id not in places:
                if job.wanted is not None:
                    edit.drop(job.id)
                    notes[job.id] = reasons.preempted(reasons.takers(job.wanted.gpus, places))
                continue
            if job.wanted is None or job.wanted.gpus != places[job.id]:
                allocation = allocation_of(job, places[job.id])
                edit.put(job.id, allocation)
                why = self._why(job, candidates[job.id], sizes[job.id])
                notes[job.id] = reasons.changed(job.wanted, allocation, why)

    def _start_idle(self, view: View, edit: ScheduleEdit, notes: dict[JobId, str]) -> None:
        free = len(view.free)
        if not free or not view.n_waiting:
            return
        owners, pool = OwnerQuota(view, []), GpuPool(view)
        jobs = {job.id: job for job in islice(view.waiting, free)}
        how = self._settings.idle_start
        candidates = {}
        for job in jobs.values():
            candidate = self._candidates.of(view, job)
            most = {"one": candidate.least, "requested": size_of(job)}.get(how, candidate.most)
            candidates[job.id] = replace(
                candidate, most=max(candidate.least, min(candidate.most, most))
            )
        jump = view.cluster.width if self._settings.lookahead else 0
        sizes = marginal_gains(candidates.values(), free, owners.take, jump=jump)
        for job_id, size in sizes.items():
            gpus = pool.place(size)
            assert gpus is not None, "the sizes exceed the free GPUs"
            allocation = allocation_of(jobs[job_id], gpus)
            edit.put(job_id, allocation)
            why = self._why(jobs[job_id], candidates[job_id], size)
            notes[job_id] = reasons.started(size, allocation.batch, f"GPUs were idle; {why}")

    def _why(self, job: JobView, candidate: GainCandidate, size: int) -> str:
        """Why the job gets this number of GPUs."""
        if not self._candidates.is_measured(job):
            return reasons.NOT_MEASURED
        return reasons.largest_saving(candidate.least, candidate.saved(candidate.least, size))

    # placement

    def _places(
        self,
        view: View,
        jobs: list[JobView],
        staying: dict[JobId, tuple[Gpu, ...]],
        sizes: dict[JobId, int],
    ) -> dict[JobId, tuple[Gpu, ...]]:
        """The GPUs of each job. A job that keeps its size keeps its GPUs."""
        if self._settings.placement == "stay":
            return GpuPool(view).arrange({job.id: staying.get(job.id, ()) for job in jobs}, sizes)
        keeping = {job: gpus for job, gpus in staying.items() if sizes.get(job) == len(gpus)}
        nodes = EvenPlacement(
            view, (g for j, gpus in staying.items() if j not in keeping for g in gpus)
        )
        changing = sorted((size, job) for job, size in sizes.items() if job not in keeping)
        return keeping | {job: nodes.place(size) for size, job in changing}

    def save(self) -> dict[str, Any]:
        stage = {"next_round": self._next_round, "stage": self._stage}
        return self._estimates.save() | stage

    def load(self, saved: Mapping[str, Any]) -> None:
        self._estimates.load(saved)
        self._next_round, self._stage = float(saved["next_round"]), str(saved["stage"])
