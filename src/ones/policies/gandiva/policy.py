"""Gandiva (OSDI'18): jobs take turns on their GPUs, move into holes, and grow into idle GPUs.

A job is assigned to a set of nodes at once. Where the jobs of a set need more GPUs than it has,
they take turns of a quantum: a suspended job resumes in half a second on the same GPUs. When a job
ends, a waiting job of the most crowded set moves into the hole. Lengths are not predicted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import floor, inf
from typing import Any, ClassVar

from ones.core import events as ev
from ones.core import reasons
from ones.core.cluster import Gpu
from ones.core.events import CAPACITY_EVENTS, Event
from ones.core.job import JobId
from ones.core.plan import PlanAdopted
from ones.core.policy import Decision
from ones.core.schedule import ScheduleEdit
from ones.core.view import JobView, View
from ones.models.gain_candidates import CandidateMaker
from ones.models.loss_estimates import LossEstimates
from ones.models.packing import GpuPool
from ones.models.rigid_jobs import allocation_of, size_of
from ones.models.settings import check_settings, setting
from ones.models.sharing import OwnerQuota
from ones.models.sizing_rounds import usable_gpus
from ones.policies.gandiva.node_sets import NodeSet, NodeSets
from ones.policies.gandiva.packing import FreeDevices, PackedPairs, fit_together, sibling_gpus

#: seconds until a set is considered again in which a job is being changed
RETRY_SECONDS = 5.0
SHARES_GPUS = "it shares these GPUs with another job, and both train faster than in turns"
#: speedup that growth must bring
GROWTH_GAIN = 1.1
#: reports of training, which change no assignment
_REPORTS = (ev.EpochFinished, ev.StepsDone, ev.ThroughputMeasured)
#: events that may concern any job
_ANY_JOB = (
    ev.NodeUp,
    ev.NodeDown,
    ev.NodeDraining,
    ev.GpuSetAside,
    ev.GpuReturned,
    ev.OwnerLimitSet,
)


class Gandiva:
    decides_on: ClassVar[frozenset[type[Event]]] = CAPACITY_EVENTS
    native_mechanism: ClassVar[str] = "suspend"
    limits_live: ClassVar[str] = (
        "packing (two jobs on one GPU) is in simulations only: here each GPU has one job"
    )

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        quantum: float = setting(60.0, "seconds of a turn", least=1.0)
        grow_after: float = setting(
            60.0, "seconds that GPUs are idle before a job grows into them; 0: never", least=0.0
        )

        pack: bool = setting(
            True,
            "two jobs may share a GPU where the cluster allows it: in simulations only; a live"
            " service has one job per GPU",
        )

        def __post_init__(self) -> None:
            check_settings(self)

    def __init__(self, *, seed: int = 0, **settings: Any) -> None:
        self._settings = self.Settings(**settings)
        #: jobs that may share a GPU; read by the simulator only
        self.slots_per_gpu = 2 if self._settings.pack else 1
        self._pairs = PackedPairs()
        self._sets = NodeSets()
        self._turns: dict[JobId, int] = {}  # had by each job
        self._switch_at = inf  # the next end of a turn
        self._switching = False  # whether the current event ends a turn
        self._open: dict[JobId, None] = {}  # jobs of sets in which something has changed
        self._decided_at: float | None = None  # time of the last event, if a decision followed it
        #: when to look again at the sets of jobs, the earliest first
        self._look_at: OrderedDict[JobId, float] = OrderedDict()
        #: when a job may use idle GPUs of its nodes, the earliest first
        self._grow_at: OrderedDict[JobId, float] = OrderedDict()
        self._growing: list[JobId] = []  # jobs for which that time has come with this event
        self._measured: dict[JobId, None] = {}  # their pairs may have changed since then
        self._estimates = LossEstimates(flat_change=0.05, flat_epochs=10, most_epochs=100)
        self._candidates = CandidateMaker(self._estimates)

    # events

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        if isinstance(event, PlanAdopted):
            for action in event.plan.actions:
                self._pairs.follow(action.job, view)
            return
        packed = isinstance(event, ev.ThroughputMeasured) and self._measure(event, view)
        if not packed:  # a step of a packed job says nothing about the job alone
            self._estimates.observe(event, view)
        if isinstance(event, _REPORTS):
            return
        self._follow(event, view)
        self._end_turn(view)

    def _measure(self, event: ev.ThroughputMeasured, view: View) -> bool:
        """Keeps a step time, which may change pairs of the job's set; whether the job is packed."""
        there = self._sets.of(event.job)
        if there is not None and there.is_crowded and view.cluster.n_devices < view.cluster.n_gpus:
            self._measured[event.job] = None
        return self._pairs.measure(event, view)

    def _follow(self, event: Event, view: View) -> None:
        """Takes over what the event changes: jobs, nodes, and pairs on shared GPUs."""
        self._switching = False
        if self._decided_at is not None:
            self._close(view, self._decided_at)
        self._decided_at = view.now if type(event) in self.decides_on else None
        self._growing = []
        while self._grow_at and next(iter(self._grow_at.values())) <= view.now:
            self._growing.append(self._grow_at.popitem(last=False)[0])
        self._open |= {job: None for job in self._measured if job in view.jobs}
        self._measured = {}
        while self._look_at and next(iter(self._look_at.values())) <= view.now:
            self._open[self._look_at.popitem(last=False)[0]] = None
        self._sets.follow(view.cluster)
        job: JobId | None = None
        if not isinstance(event, ev.JobSubmitted):
            job = getattr(event, "job", None)
        if job is not None:
            self._pairs.follow(job, view)
        if isinstance(event, ev.JobSubmitted):
            self._assign(view, event.job.id)
        elif isinstance(event, ev.JobEnded):
            self._forget(view, event.job)
        elif job is not None and job in view.jobs:
            self._open[job] = None
        elif isinstance(event, _ANY_JOB):
            self._open |= dict.fromkeys(view.jobs)

    def _end_turn(self, view: View) -> None:
        """Notes whether a turn ends now, and when the next one does."""
        if not self._sets.any_crowded:
            self._switch_at = inf
        elif view.now >= self._switch_at or self._switch_at == inf:
            self._switching = self._switch_at < inf
            quantum = self._settings.quantum
            self._switch_at = (floor(view.now / quantum) + 1) * quantum
            if self._switching:
                self._count_turns(view)

    def _assign(self, view: View, job_id: JobId) -> None:
        job = view.job(job_id)
        self._sets.assign(job_id, size_of(job))
        self._open[job_id] = None
        there = self._sets.of(job_id)
        if there is not None:  # it takes its first turn with the others
            others = [self._turns.get(other, 0) for other in there.jobs if other != job_id]
            self._turns[job_id] = min(others, default=0)
            self._plan_growth(view, there)

    def _forget(self, view: View, job: JobId) -> None:
        """Removes an ended job; waiting jobs of crowded sets move into the hole."""
        self._turns.pop(job, None)
        self._open.pop(job, None)
        self._look_at.pop(job, None)
        self._grow_at.pop(job, None)
        hole = self._sets.remove(job)
        if hole is None:
            return
        running = {
            other: {gpu.node for gpu in view.schedule[other].gpus}
            for other in hole.jobs
            if other in view.schedule
        }
        for part in self._sets.split(hole, running):
            self._open |= dict.fromkeys(part.jobs)
            self._fill(view, part)
            self._plan_growth(view, part)
        for waiting, demand in list(self._sets.homeless.items()):
            self._sets.assign(waiting, demand)
            self._open[waiting] = None

    def _plan_growth(self, view: View, nodes: NodeSet) -> None:
        """Jobs may grow when the GPUs that are idle now have been idle for long enough."""
        grows = self._settings.grow_after > 0 and nodes.free > 0
        for job in nodes.jobs:
            self._grow_at.pop(job, None)
            if grows:
                self._grow_at[job] = view.now + self._settings.grow_after

    def _fill(self, view: View, hole: NodeSet) -> None:
        if hole.free < 1:
            return
        for nodes in self._sets.tallest(hole.free):
            for job, demand in list(nodes.jobs.items()):
                if nodes.is_crowded and demand <= hole.free and job not in view.schedule:
                    self._sets.move(job, hole)
                    self._open[job] = None
            if hole.free < 1:
                return

    def _count_turns(self, view: View) -> None:
        for nodes in self._sets.crowded():
            for job in nodes.jobs:
                if job in view.schedule:
                    self._turns[job] = self._turns.get(job, 0) + 1

    def _close(self, view: View, decided_at: float) -> None:
        """Forgets the changed jobs of sets that were decided; looks again later at those in which
        a job is being changed."""
        rests: dict[int, bool] = {}
        changing: dict[int, bool] = {}
        for job_id in list(self._open):
            there = self._sets.of(job_id)
            if there is None:
                del self._open[job_id]
                continue
            if id(there) not in rests:
                jobs = [view.job(job) for job in there.jobs if job in view.jobs]
                changing[id(there)] = any(job.pinned for job in jobs)
                rests[id(there)] = changing[id(there)] or not _has_room(there, jobs)
            if rests[id(there)]:
                del self._open[job_id]
                if changing[id(there)]:
                    self._look_at.setdefault(job_id, decided_at + RETRY_SECONDS)

    # decisions

    def decide(self, view: View) -> Decision:
        if not view.jobs:
            return Decision(schedule=view.schedule)
        sets: dict[int, NodeSet] = {}
        for job_id in (*self._open, *self._growing):
            there = self._sets.of(job_id)
            if there is not None:
                sets[id(there)] = there
        if self._switching:
            sets |= {id(nodes): nodes for nodes in self._sets.crowded()}
        edit = view.schedule.edit()
        notes: dict[JobId, str] = {}
        wake_at = min(
            self._switch_at,
            next(iter(self._grow_at.values()), inf),
            next(iter(self._look_at.values()), inf),
        )
        members = [view.job(job) for nodes in sets.values() for job in nodes.jobs]
        movable = [job for job in members if job.wanted is not None and not self._stays(view, job)]
        owners, pool = OwnerQuota(view, movable), GpuPool(view)
        for job in movable:
            pool.release(view.schedule[job.id].gpus)
        for nodes in sets.values():
            wake_at = min(wake_at, self._share(view, nodes, pool, owners, edit, notes))
        for job_id in self._sets.homeless:
            notes[job_id] = reasons.waiting_too_large(size_of(view.job(job_id)))
        return Decision(schedule=edit.done(), wake_at=max(wake_at, view.now + 1e-3), notes=notes)

    def _share(
        self,
        view: View,
        nodes: NodeSet,
        pool: GpuPool,
        owners: OwnerQuota,
        edit: ScheduleEdit,
        notes: dict[JobId, str],
    ) -> float:
        """Decides which jobs of a set run; returns when to look at it again."""
        members = [view.job(job) for job in nodes.jobs]
        retry = inf
        if any(job.pinned and job.job.elastic for job in members):
            retry = view.now + RETRY_SECONDS
        jobs = [job for job in members if not self._stays(view, job)]
        whole = FreeDevices(view.cluster, pool)
        free = sum(len(whole.on(node)) for node in nodes.nodes)
        chosen: list[JobView] = []
        for job in sorted(jobs, key=self._turn_order):
            size = size_of(job)
            if size <= free and owners.take(job.job.owner, size):
                free -= size
                chosen.append(job)
        kept: dict[JobId, tuple[Gpu, ...]] = {}
        spare = free  # jobs that have grown keep what others do not need
        for job in chosen:
            gpus = self._kept(view, nodes, job, spare)
            kept[job.id] = gpus if whole.are_free(gpus) else ()
            spare -= max(0, len(kept[job.id]) - size_of(job))
            whole.take(kept[job.id])
        places: dict[JobId, tuple[Gpu, ...]] = {}
        for job in chosen:
            gpus = kept[job.id] or _take(whole, nodes, size_of(job))
            if gpus == kept[job.id] and job.id in self._growing:
                gpus = self._grown(view, job, gpus, whole, nodes, spare, owners)
                spare -= len(gpus) - len(kept[job.id])
            places[job.id] = gpus
        guests = self._guests(view, jobs, chosen, places, owners)
        for job in jobs:
            gpus = places.get(job.id) or guests.get(job.id, ())
            if not gpus:
                if job.wanted is not None:
                    edit.drop(job.id)
                notes[job.id] = self._wait_note(job)
                continue
            if job.wanted is None or job.wanted.gpus != gpus:
                allocation = allocation_of(job, gpus)
                edit.put(job.id, allocation)
                why = SHARES_GPUS if job.id in guests else self._why(nodes)
                notes[job.id] = reasons.changed(job.wanted, allocation, why)
        return retry

    def _stays(self, view: View, job: JobView) -> bool:
        """Whether the job is left as it is: it is being changed, or the one beside it is."""
        if job.pinned or view.cluster.n_devices == view.cluster.n_gpus:
            return job.pinned
        other = self._pairs.partner(job.id, view.cluster)
        return other is not None and other in view.jobs and view.job(other).pinned

    def _guests(
        self,
        view: View,
        jobs: list[JobView],
        chosen: list[JobView],
        places: Mapping[JobId, tuple[Gpu, ...]],
        owners: OwnerQuota,
    ) -> dict[JobId, tuple[Gpu, ...]]:
        """Waiting jobs that share the GPUs of jobs of the same size."""
        found: dict[JobId, tuple[Gpu, ...]] = {}
        waits = [job for job in jobs if job.id not in places]
        if not waits or not self._settings.pack:
            return found
        hosts = {
            job.id: job for job in chosen if view.cluster.nodes[places[job.id][0].node].slots > 1
        }
        for job in sorted(waits, key=self._turn_order):
            size = size_of(job)
            fitting = [
                (self._pairs.rate(host, job), -host.number, host)
                for host in hosts.values()
                if len(places[host.id]) == size and fit_together(host, job)
            ]
            present = [
                entry
                for entry in fitting
                if self._pairs.partner(entry[2].id, view.cluster) == job.id
            ]
            rate, _, host = max(present or fitting, default=(0.0, 0, None))
            if host is None or rate <= 1.0 or not owners.take(job.job.owner, size):
                continue
            del hosts[host.id]
            found[job.id] = sibling_gpus(view.cluster, places[host.id])
        return found

    def _turn_order(self, job: JobView) -> tuple[float, float, bool, int]:
        """Order of service: at the end of a turn, the jobs that had the fewest come first."""
        turns = self._turns.get(job.id, 0)
        runs = job.wanted is not None
        if self._switching:
            return (-job.priority, turns, runs, job.number)
        return (-job.priority, 0.0 if runs else 1.0, not runs, turns * 1_000_000 + job.number)

    def _kept(self, view: View, nodes: NodeSet, job: JobView, spare: int) -> tuple[Gpu, ...]:
        """The GPUs that a job keeps, at most `spare` above its size; () if it is to move."""
        if job.wanted is None:
            return ()
        gpus, size = usable_gpus(view, job), size_of(job)
        if len(gpus) < size or not {gpu.node for gpu in gpus} <= set(nodes.nodes):
            return ()
        return gpus if len(gpus) - size <= spare else gpus[:size]

    def _grown(
        self,
        view: View,
        job: JobView,
        gpus: tuple[Gpu, ...],
        pool: FreeDevices,
        nodes: NodeSet,
        spare: int,
        owners: OwnerQuota,
    ) -> tuple[Gpu, ...]:
        """The job's GPUs, and idle ones of its nodes if they make it faster."""
        if not self._candidates.is_measured(job):
            return gpus
        candidate = self._candidates.of(view, job)
        now = candidate.step_seconds(len(gpus))
        sizes = range(len(gpus) + 1, min(candidate.most, len(gpus) + spare) + 1)
        best = min(sizes, key=candidate.step_seconds, default=len(gpus))
        more = best - len(gpus)
        if not more or candidate.step_seconds(best) * GROWTH_GAIN > now:
            return gpus
        if not owners.take(job.job.owner, more):
            return gpus
        return tuple(sorted((*gpus, *_take(pool, nodes, more))))

    def _why(self, nodes: NodeSet) -> str:
        if nodes.is_crowded:
            return f"{len(nodes.jobs)} jobs take turns on these GPUs"
        return "these GPUs were free"

    def _wait_note(self, job: JobView) -> str:
        return reasons.waiting_for_turn(self._settings.quantum)

    # state

    def save(self) -> dict[str, Any]:
        return {
            "sets": self._sets.save(),
            "turns": dict(self._turns),
            "switch_at": None if self._switch_at == inf else self._switch_at,
            "switching": self._switching,
            "open": list(self._open),
            "decided_at": self._decided_at,
            "look_at": dict(self._look_at),
            "grow_at": dict(self._grow_at),
            "growing": list(self._growing),
            "measured": list(self._measured),
            "estimates": self._estimates.save(),
            "pairs": self._pairs.save(),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._sets.load(saved["sets"])
        self._turns = {JobId(job): int(turns) for job, turns in saved["turns"].items()}
        self._switch_at = inf if saved["switch_at"] is None else float(saved["switch_at"])
        self._switching = bool(saved["switching"])
        self._open = {JobId(job): None for job in saved["open"]}
        decided = saved["decided_at"]
        self._decided_at = None if decided is None else float(decided)
        self._look_at = OrderedDict((JobId(job), float(at)) for job, at in saved["look_at"].items())
        self._grow_at = OrderedDict((JobId(job), float(at)) for job, at in saved["grow_at"].items())
        self._growing = [JobId(job) for job in saved["growing"]]
        self._measured = {JobId(job): None for job in saved["measured"]}
        self._estimates.load(saved["estimates"])
        self._pairs.load(saved["pairs"])


def _has_room(nodes: NodeSet, jobs: Iterable[JobView]) -> bool:
    """Whether a waiting job of the set fits beside the others: the limit of its owner stops it."""
    free, smallest = nodes.capacity, inf
    for job in jobs:
        if job.wanted is None:
            smallest = min(smallest, size_of(job))
        else:
            free -= min(size_of(job), job.wanted.n_gpus)
    return smallest <= free


def _take(pool: FreeDevices, nodes: NodeSet, size: int) -> tuple[Gpu, ...]:
    """GPUs of these nodes: of one node if it has enough, else of the emptiest."""
    enough = [node for node in nodes.nodes if len(pool.on(node)) >= size]
    if enough:
        order = [min(enough, key=lambda node: len(pool.on(node)))]
    else:
        order = sorted(nodes.nodes, key=lambda node: -len(pool.on(node)))
    chosen: list[Gpu] = []
    for node in order:
        chosen += pool.on(node)[: size - len(chosen)]
    pool.take(chosen)
    return tuple(sorted(chosen))
