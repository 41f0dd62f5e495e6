"""Sia: every minute, one configuration for each job, by an integer program on normalised goodputs.

Configurations are powers of two inside a node and whole nodes beyond (Jayaram
Subramanya et al., SOSP'23). Goodputs and batches are Pollux's. `decide` solves the
program of the round; between rounds a job changes only its batch, at the end of an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from ones.core import events as ev
from ones.core.cluster import NodeId
from ones.core.events import Event
from ones.core.job import JobId
from ones.core.plan import PlanAdopted
from ones.core.policy import Decision
from ones.core.schedule import ScheduleEdit
from ones.core.view import JobView, View
from ones.models.adaptive_batch import BatchRules, most_gpus
from ones.models.batch_changes import BatchChanges
from ones.models.node_counts import counts_of, gpus_for, room_without
from ones.models.packing import Room
from ones.models.rounds import Restarts, Rounds
from ones.models.sharing import OwnerRoom
from ones.models.whole_nodes import arrange

Floats = NDArray[np.float64]

#: more than any cost of a configuration: who is of a higher priority is let in first
_PRIORITY_STEP = 100.0
_GAP = 1e-4  # of the solver
_LARGEST = 3000.0  # cost of a configuration, at most


class Choice(NamedTuple):
    """A variable of the program: this job in this configuration."""

    job: int
    gpus: int
    cost: float


class Sia:
    decides_on: ClassVar[frozenset[type[Event]]] = frozenset(
        {ev.JobSubmitted, ev.EpochFinished, ev.Woke}
    )
    native_mechanism: ClassVar[str] = "checkpoint"

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        interval: float = field(default=60.0, metadata={"help": "seconds from round to round"})
        power: float = field(
            default=-0.5,
            metadata={"help": "p of normalised goodputs; the lower, the fairer; below 0"},
        )
        waiting_cost: float = field(
            default=1.1,
            metadata={"help": "cost of a job without GPUs, in that of its smallest configuration"},
        )
        restart_seconds: float = field(
            default=0.0,
            metadata={
                "help": "what a change of GPUs is taken to cost a job;"
                " 0: what changes have cost it so far"
            },
        )
        most_batch: float = field(
            default=32.0, metadata={"help": "largest batch, in times the base batch"}
        )
        least_local_batch: int = field(
            default=1, metadata={"help": "fewest samples on a GPU in one step"}
        )
        two_parts_alone: bool = field(
            default=False,
            metadata={
                "help": "a batch beyond the base one comes in two parts on one GPU, as the"
                " published trainer needs to measure its noise"
            },
        )
        batch_gain: float = field(
            default=0.05,
            metadata={"help": "gain in goodput that is worth changing only the batch"},
        )
        batch_growth: float = field(
            default=4.0,
            metadata={
                "help": "most that a batch grows from one epoch to the next (published: inf)"
            },
        )
        start_at_once: bool = field(
            default=False,
            metadata={
                "help": "a new job gets free GPUs at once, its least, and not in the next round"
            },
        )

        def __post_init__(self) -> None:
            for name, least in (
                ("interval", 1.0),
                ("waiting_cost", 0.0),
                ("restart_seconds", 0.0),
                ("most_batch", 1.0),
                ("least_local_batch", 1),
                ("batch_gain", 0.0),
                ("batch_growth", 1.0),
            ):
                if not getattr(self, name) >= least:
                    raise ValueError(f"{name} {getattr(self, name)} is not at least {least}")
            if not self.power < 0:
                raise ValueError(f"power {self.power} is not below 0")

    def __init__(self, *, seed: int = 0, **settings: Any) -> None:
        self._settings = chosen = self.Settings(**settings)
        self._rounds = Rounds(chosen.interval)
        self._restarts = Restarts()
        self._batches = BatchChanges(
            BatchRules(chosen.most_batch, chosen.least_local_batch, chosen.two_parts_alone),
            growth=chosen.batch_growth,
            gain=chosen.batch_gain,
        )
        self._spoke: JobId | None = None  # whose submission or epoch is being looked at

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        self._rounds.observe(event, view)
        self._restarts.observe(event, view)
        self._batches.observe(event, view)
        self._spoke = None
        if isinstance(event, ev.JobSubmitted):
            self._spoke = event.job.id
        elif isinstance(event, ev.EpochFinished):
            self._spoke = event.job

    def decide(self, view: View) -> Decision:
        edit = view.schedule.edit()
        notes: dict[JobId, str] = {}
        if self._rounds.due:
            self._round(view, edit, notes)
        elif self._spoke is not None and self._spoke in view.jobs:
            self._answer(view, view.job(self._spoke), edit, notes)
        return Decision(schedule=edit.done(), wake_at=self._rounds.wake_at(view), notes=notes)

    # a round

    def _round(self, view: View, edit: ScheduleEdit, notes: dict[JobId, str]) -> None:
        jobs = [job for job in view.jobs.values() if not job.pinned]
        room = room_without(view, jobs)
        gpus = sum(room.values())
        if not jobs:
            return
        choices = [c for i, job in enumerate(jobs) for c in self._choices(view, i, job, gpus)]
        sizes = solve(choices, gpus, self._waiting_costs(jobs), _owner_rooms(view, jobs))
        held = {job.id: counts_of(view, job) for job in jobs}
        wanted = {job.id: sizes[i] for i, job in enumerate(jobs) if sizes[i]}
        counts = arrange(room, {n: view.cluster.nodes[n].gpus for n in room}, held, wanted)
        self._deploy(view, jobs, counts, edit, notes)

    def _choices(self, view: View, index: int, job: JobView, gpus: int) -> list[Choice]:
        """The configurations of a job that are open to it, with their costs."""
        least = job.job.min_gpus
        most = min(most_gpus(job, self._batches.models.rules, gpus), gpus)
        sizes = [c for c in sizes_for(view.cluster.width, most) if c >= least]
        if not sizes and least <= gpus:
            sizes = [least]  # it is asked for a size that is not among them
        if job.description is None or not job.profile or not sizes:
            return [Choice(index, c, 1.0) for c in sizes[:1]]
        goodputs = self._goodputs(view, job, sizes)
        goodputs /= goodputs.min()
        if job.wanted is not None:
            age = view.now - job.job.submitted_at
            seconds = self._settings.restart_seconds or self._restarts.seconds(job.id)
            factor = self._restarts.factor(job.id, age, seconds) if age >= seconds else 1.0
            moved = np.array([c != job.wanted.n_gpus for c in sizes])
            goodputs = np.where(moved, goodputs * factor, goodputs)
        costs = np.minimum(np.maximum(goodputs, 1e-9) ** self._settings.power, _LARGEST)
        return [Choice(index, c, round(float(k), 2)) for c, k in zip(sizes, costs, strict=True)]

    def _goodputs(self, view: View, job: JobView, sizes: list[int]) -> Floats:
        best = self._batches.models.of(job).table(max(sizes)).goodput
        return np.array([best[int(c > view.cluster.width), c] for c in sizes])

    def _waiting_costs(self, jobs: list[JobView]) -> Floats:
        levels = {p: i for i, p in enumerate(sorted({job.priority for job in jobs}))}
        base = self._settings.waiting_cost
        return np.array([base + _PRIORITY_STEP * levels[job.priority] for job in jobs])

    def _deploy(
        self,
        view: View,
        jobs: list[JobView],
        counts: dict[JobId, dict[NodeId, int]],
        edit: ScheduleEdit,
        notes: dict[JobId, str],
    ) -> None:
        places = gpus_for(view, jobs, counts)
        crowd = f"{len(view.jobs)} jobs on {view.cluster.n_gpus} GPUs"
        for job in jobs:
            gpus = places.get(job.id, ())
            if gpus == (job.wanted.gpus if job.wanted else ()):
                if not gpus:
                    notes[job.id] = f"no GPUs in this round: {crowd}"
                continue
            if not gpus:
                edit.drop(job.id)
                notes[job.id] = f"loses its {len(job.wanted.gpus if job.wanted else ())}: {crowd}"
                continue
            allocation = self._batches.on(job, gpus)
            edit.put(job.id, allocation)
            before = job.wanted.n_gpus if job.wanted else 0
            batch = f", batch {allocation.batch}" if allocation.batch else ""
            notes[job.id] = (
                f"{before} -> {len(gpus)} GPUs on {allocation.n_nodes} nodes{batch}:"
                f" the best sum of goodputs for {crowd}"
            )

    # between two rounds

    def _answer(
        self, view: View, job: JobView, edit: ScheduleEdit, notes: dict[JobId, str]
    ) -> None:
        """A better batch, or a first GPU for a new job."""
        better = self._batches.after_epoch(job)
        if better is not None:
            edit.put(job.id, better[0])
            notes[job.id] = better[1]
        elif job.wanted is None and job.started_at is None and not job.pinned:
            notes[job.id] = f"waits for the round at {self._rounds.wake_at(view):.0f} s"
            room, least = Room(view), job.job.min_gpus
            if self._settings.start_at_once and least <= len(room):
                gpus = room.place(least)
                if gpus is not None and OwnerRoom(view, []).take(job.job.owner, least):
                    edit.put(job.id, self._batches.on(job, gpus))
                    notes[job.id] = f"new: starts on {least} free GPUs until the next round"

    def save(self) -> dict[str, Any]:
        return {
            "rounds": self._rounds.save(),
            "restarts": self._restarts.save(),
            "batches": self._batches.save(),
            "spoke": self._spoke,
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._rounds.load(saved["rounds"])
        self._restarts.load(saved["restarts"])
        self._batches.load(saved["batches"])
        self._spoke = None if saved["spoke"] is None else JobId(saved["spoke"])


def sizes_for(per_node: int, most: int) -> list[int]:
    """1, 2, 4, ... GPUs of a node, all of them, then whole nodes.

    >>> sizes_for(4, 16)
    [1, 2, 4, 8, 12, 16]
    """
    inside = [1 << i for i in range(per_node.bit_length()) if 1 << i < per_node]
    return [c for c in (*inside, *range(per_node, most + 1, per_node)) if c <= most]


def solve(
    choices: list[Choice],
    gpus: int,
    waiting_costs: Floats,
    owners: list[tuple[list[int], int]] | None = None,
) -> list[int]:
    """GPUs of each job, such that the sum of costs is least; at most one choice for each.

    `owners`: jobs that together may have no more than so many GPUs. The solver counts
    nodes of its tree and no seconds, so that equal questions have equal answers.
    """
    jobs = len(waiting_costs)
    sizes = [0] * jobs
    if not choices or gpus <= 0:
        return sizes
    rows = np.array([c.job for c in choices])
    counts = np.array([c.gpus for c in choices])
    costs = np.array([c.cost for c in choices]) - waiting_costs[rows]
    once = csr_array((np.ones(len(rows)), (rows, np.arange(len(rows)))), (jobs, len(rows)))
    limits = [
        LinearConstraint(once, ub=np.ones(jobs)),
        LinearConstraint(counts[None, :], ub=gpus),
    ]
    for members, room in owners or []:
        theirs = np.where(np.isin(rows, members), counts, 0)
        limits.append(LinearConstraint(theirs[None, :], ub=max(0, room)))
    found = milp(
        costs,
        integrality=np.ones(len(rows)),
        bounds=Bounds(0, 1),
        constraints=limits,
        options={"mip_rel_gap": _GAP, "node_limit": 100_000},
    )
    if found.x is not None:
        for i in np.flatnonzero(found.x > 0.5).tolist():
            sizes[choices[i].job] = choices[i].gpus
    return sizes


def _owner_rooms(view: View, jobs: list[JobView]) -> list[tuple[list[int], int]]:
    """The jobs of every owner with a limit, and what they may have if placed anew."""
    members: dict[str, list[int]] = {}
    for i, job in enumerate(jobs):
        members.setdefault(job.job.owner, []).append(i)
    rooms = []
    for owner, theirs in members.items():
        room = view.room(owner)
        if room is not None:
            held = (jobs[i].wanted for i in theirs)
            rooms.append((theirs, room + sum(a.n_gpus for a in held if a is not None)))
    return rooms
