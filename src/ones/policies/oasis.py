"""OASiS (INFOCOM'18): GPUs have a price in each time slot, and a job is admitted if it is worth it.

When a job arrives, a dynamic program finds its cheapest plan for every possible end. The value of
a job falls with its end, by its priority and deadline. The best plan is kept if its value is above
its cost; the GPUs of its slots become dearer. Otherwise the job is refused, for good.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, floor
from typing import Any, ClassVar

from ones.core import events as ev
from ones.core import reasons
from ones.core.events import CAPACITY_EVENTS, Event
from ones.core.job import JobId
from ones.core.plan import PlanAdopted
from ones.core.policy import Decision
from ones.core.view import JobView, View
from ones.models.gain_candidates import CandidateMaker
from ones.models.loss_estimates import LossEstimates
from ones.models.oracle import ORACLE_NEEDED, Oracle
from ones.models.packing import GpuPool
from ones.models.rigid_jobs import allocation_of, size_of
from ones.models.settings import check_settings, setting
from ones.models.sharing import OwnerQuota
from ones.models.sizing_rounds import running_jobs, usable_gpus
from ones.models.slot_plan import PlanTable, work_units

#: value of a job of priority 0, and the priority that makes it ten times as large (values 1 to
#: 100 for priorities -100 to 100, the range of the publication)
BASE_VALUE, TENFOLD = 10.0, 100.0
#: how fast the value falls at the deadline: 88 % of it at half of the deadline, 2 % at twice of it
STEEPNESS = 4.0
#: the price of an idle GPU, relative to the lowest value per GPU and slot (the publication: 1/4)
LOWEST_PRICE = 0.25
MAX_DENSITIES = 100  # values per GPU and slot of the last jobs, which bound the prices
MAX_NOTES = 100


class Oasis:
    decides_on: ClassVar[frozenset[type[Event]]] = CAPACITY_EVENTS
    native_mechanism: ClassVar[str] = "checkpoint"
    takes_oracle: ClassVar[bool] = True

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        slot: float = setting(60.0, "seconds of a time slot", least=1.0)
        horizon: int = setting(240, "slots that are planned ahead", least=1)
        patience: float = setting(
            3.0,
            "deadline of a job without one, as a multiple of its predicted time as requested",
            least=0.1,
        )
        use_idle: bool = setting(
            True, "GPUs that no plan uses in a slot go to admitted jobs (published: they idle)"
        )
        refuse: bool = setting(True, "refuse jobs that are not worth their price; false: none")
        knowledge: str = setting(
            "fitted",
            "work and speed: fitted to reports, or from an oracle",
            options=("fitted", "oracle"),
        )

        def __post_init__(self) -> None:
            check_settings(self)

    def __init__(self, *, seed: int = 0, oracle: Oracle | None = None, **settings: Any) -> None:
        self._settings = self.Settings(**settings)
        known = self._settings.knowledge == "oracle"
        if known and oracle is None:
            raise ValueError(f"knowledge=oracle {ORACLE_NEEDED}")
        self._estimates = LossEstimates(flat_change=0.05, flat_epochs=10, most_epochs=100)
        self._candidates = CandidateMaker(
            self._estimates, oracle if known else None, kinds_first=True
        )
        self._plans: dict[JobId, dict[int, int]] = {}  # GPUs by slot, in order of admission
        self._usage: dict[int, int] = {}  # planned GPUs by slot
        self._refused: dict[JobId, str] = {}
        self._densities: list[float] = []  # value per GPU and slot

    # events

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        if isinstance(event, PlanAdopted):
            return
        self._estimates.observe(event, view)
        if type(event) not in self.decides_on:
            return
        now = self._slot(view.now)
        self._usage = {slot: gpus for slot, gpus in self._usage.items() if slot >= now}
        if isinstance(event, ev.JobEnded):
            self._forget(event.job)
        elif isinstance(event, ev.JobSubmitted):
            self._admit(view, view.job(event.job.id))
        for job in [job for job, plan in self._plans.items() if max(plan, default=-1) < now]:
            self._forget(job)  # it has outlived its plan
            if job in view.jobs:
                self._plan(view, view.job(job), admitted=True)
        for job in view.jobs:
            if job not in self._plans and job not in self._refused:
                self._plan(view, view.job(job), admitted=True)

    def _slot(self, at: float) -> int:
        return floor(at / self._settings.slot + 1e-9)

    def _forget(self, job: JobId) -> None:
        self._refused.pop(job, None)
        for slot, gpus in self._plans.pop(job, {}).items():
            if slot in self._usage:
                self._usage[slot] -= gpus

    def _admit(self, view: View, job: JobView) -> None:
        refusal = self._plan(view, job, admitted=not self._settings.refuse)
        if refusal is not None:
            self._refused[job.id] = refusal

    def _plan(self, view: View, job: JobView, *, admitted: bool) -> str | None:
        """Plans a job; returns why it is refused. An admitted job always gets a plan."""
        candidate = self._candidates.of(view, job)
        width = self._settings.slot
        sizes = {candidate.least, *(1 << i for i in range(12)), size_of(job)}
        done = {
            gpus: width / candidate.step_seconds(gpus)
            for gpus in sorted(sizes)
            if candidate.least <= gpus <= candidate.most
        }
        work, units = work_units(candidate.steps, done)
        value = BASE_VALUE * 10.0 ** (max(-100.0, min(100.0, job.priority)) / TENFOLD)
        if not admitted:
            slots = candidate.steps / max(done.values())
            self._densities.append(value / max(1.0, slots * candidate.least))
            del self._densities[:-MAX_DENSITIES]
        first, total = self._slot(view.now), view.cluster.n_gpus
        used = [self._usage.get(first + i, 0) for i in range(self._settings.horizon)]
        prices = [self._price(gpus, total) for gpus in used]
        table = PlanTable(work, units, prices, [max(0, total - gpus) for gpus in used])
        wished = candidate.steps * candidate.step_seconds(
            min(candidate.most, max(candidate.least, size_of(job)))
        )
        deadline = job.job.deadline or max(self._settings.patience * wished, width)
        best: tuple[float, int, float, float] | None = None
        for slots_needed, cost in table.ends():
            end = slots_needed * width  # of a job that outlived its plan: from now on
            worth = value / (1.0 + exp(min(50.0, STEEPNESS * (end / deadline - 1.0))))
            payoff = worth - cost
            if best is None or payoff > best[0]:
                best = (payoff, slots_needed, worth, cost)
        if best is not None and (admitted or best[0] > 0):
            plan = {first + i: gpus for i, gpus in enumerate(table.plan(best[1])) if gpus}
        elif not admitted:
            return reasons.REFUSED_TOO_LONG if best is None else reasons.refused(best[2], best[3])
        else:  # no plan fits: its minimum, whenever GPUs are free
            plan = {first: candidate.least}
        self._plans[job.id] = plan
        for slot, gpus in plan.items():
            self._usage[slot] = self._usage.get(slot, 0) + gpus
        return None

    def _price(self, used: int, total: int) -> float:
        """L (U / L)^z for a used part z: from the lowest price to that at which no job gains."""
        if not self._densities or not total:
            return 0.0
        lowest, highest = LOWEST_PRICE * min(self._densities), max(self._densities)
        price: float = lowest * (highest / lowest) ** min(1.0, used / total)
        return price

    # decisions

    def decide(self, view: View) -> Decision:
        if not view.jobs:
            return Decision(schedule=view.schedule)
        slot = self._slot(view.now)
        running = running_jobs(view)
        movable = {job.id: job for job in running if not job.pinned}
        staying = {job.id: usable_gpus(view, job) for job in movable.values()}
        left = len(view.free) + sum(map(len, staying.values()))
        owners = OwnerQuota(view, movable.values())
        waiting = {job.id: job for job in view.waiting if job.id not in self._refused}
        present = movable | waiting
        # planned jobs first, in order of admission; a higher priority goes before
        order = sorted(
            (job for job in self._plans if job in present), key=lambda job: -present[job].priority
        )
        sizes: dict[JobId, int] = {}
        wished = [(job, self._plans[job].get(slot, 0)) for job in order]
        if self._settings.use_idle:  # running jobs first
            idle = [job for job, size in wished if not size]
            idle.sort(key=lambda job: job not in movable)
            wished += [(job, self._idle_size(present[job])) for job in idle]
        for job_id, wish in wished:
            job = present[job_id]
            # the limits of a job may have changed since it was planned
            least, most = job.job.min_gpus, job.job.max_gpus or wish
            size = max(least, min(wish, most))
            size = size if size <= left else least
            if wish and size <= left and owners.take(job.job.owner, size):
                sizes[job_id] = size
                left -= size
        arranged = {job: staying.get(job, ()) for job in order}
        places = GpuPool(view).arrange(arranged, sizes)
        edit = view.schedule.edit()
        notes: dict[JobId, str] = {}
        for job_id in order:
            job = present[job_id]
            if job_id not in places:
                if job.wanted is not None:
                    edit.drop(job_id)
                if len(notes) < MAX_NOTES:
                    notes[job_id] = self._wait_note(job, slot)
            elif job.wanted is None or job.wanted.gpus != places[job_id]:
                allocation = allocation_of(job, places[job_id])
                edit.put(job_id, allocation)
                notes[job_id] = reasons.changed(
                    job.wanted, allocation, "it was planned when the job was admitted"
                )
        refused = {job.id: self._refused[job.id] for job in view.waiting if job.id in self._refused}
        wake_at = (slot + 1) * self._settings.slot
        return Decision(
            schedule=edit.done(),
            wake_at=max(wake_at, view.now + 1e-3),
            notes=notes,
            refused=refused,
        )

    def _idle_size(self, job: JobView) -> int:
        """GPUs of a job in a slot that its plan does not use."""
        if job.wanted is not None:
            return job.wanted.n_gpus
        return max(self._plans[job.id].values(), default=size_of(job))

    def _wait_note(self, job: JobView, slot: int) -> str:
        begins = min((s for s in self._plans[job.id] if s > slot), default=slot + 1)
        return reasons.waiting_for_round(begins * self._settings.slot, job.job.min_gpus)

    # state

    def save(self) -> dict[str, Any]:
        return {
            "estimates": self._estimates.save(),
            "plans": {job: [[*pair] for pair in plan.items()] for job, plan in self._plans.items()},
            "refused": dict(self._refused),
            "densities": list(self._densities),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._estimates.load(saved["estimates"])
        self._plans = {
            JobId(job): {int(slot): int(gpus) for slot, gpus in plan}
            for job, plan in saved["plans"].items()
        }
        self._refused = {JobId(job): str(why) for job, why in saved["refused"].items()}
        self._densities = [float(density) for density in saved["densities"]]
        self._usage = {}
        for plan in self._plans.values():
            for slot, gpus in plan.items():
                self._usage[slot] = self._usage.get(slot, 0) + gpus
