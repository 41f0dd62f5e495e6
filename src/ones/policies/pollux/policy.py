"""Pollux: every minute, the GPUs of all jobs anew, so that the power mean of speed-ups is largest.

`observe` learns and, when a round is due, lets the genetic search run; `decide` turns
what it found into GPUs and batches. Between rounds a job changes only its batch, at the
end of an epoch. It knows nothing of lengths: nobody's end is predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ones.core import events as ev
from ones.core.cluster import NodeId
from ones.core.events import Event
from ones.core.job import JobId
from ones.core.plan import PlanAdopted
from ones.core.policy import Decision
from ones.core.schedule import ScheduleEdit
from ones.core.view import JobView, View
from ones.models.adaptive_batch import BatchRules
from ones.models.batch_changes import BatchChanges
from ones.models.node_counts import gpus_for, room_without
from ones.models.packing import Room
from ones.models.rounds import Restarts, Rounds
from ones.models.sharing import OwnerRoom
from ones.policies.pollux.problem import fitness
from ones.policies.pollux.question import ask, fair_share
from ones.policies.pollux.search import Search
from ones.policies.pollux.settings import PolluxSettings


class Pollux:
    decides_on: ClassVar[frozenset[type[Event]]] = frozenset(
        {ev.JobSubmitted, ev.EpochFinished, ev.Woke}
    )
    native_mechanism: ClassVar[str] = "checkpoint"
    Settings: ClassVar[type[PolluxSettings]] = PolluxSettings

    def __init__(self, *, seed: int = 0, **settings: Any) -> None:
        self._settings = chosen = self.Settings(**settings)
        self._rounds = Rounds(chosen.interval)
        self._restarts = Restarts()
        self._search = Search(chosen.members, chosen.generations, seed)
        self._batches = BatchChanges(
            BatchRules(chosen.most_batch, chosen.least_local_batch, chosen.two_parts_alone),
            growth=chosen.batch_growth,
            gain=chosen.batch_gain,
        )
        self._spoke: JobId | None = None  # whose submission or epoch is being looked at
        # what the round that is due has found: GPUs on each node, and the power mean
        self._found: dict[JobId, dict[NodeId, int]] = {}
        self._fitness = 0.0

    # learning

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        self._rounds.observe(event, view)
        self._restarts.observe(event, view)
        self._batches.observe(event, view)
        self._spoke, self._found = None, {}
        if isinstance(event, ev.JobSubmitted):
            self._spoke = event.job.id
        elif isinstance(event, ev.EpochFinished):
            self._spoke = event.job
        elif self._rounds.due:
            self._evolve(view)

    def _evolve(self, view: View) -> None:
        jobs = self._in_order(view)
        room = room_without(view, jobs)
        if not jobs or not sum(room.values()):
            return
        problem = ask(view, jobs, room, self._batches.models, self._restarts, self._settings)
        nodes = list(room)
        best, cost = self._search.round(problem, [job.id for job in jobs], nodes)
        self._fitness = fitness(cost, len(jobs), self._settings.power)
        for job, row in zip(jobs, best, strict=True):
            self._found[job.id] = {nodes[i]: int(row[i]) for i in np.flatnonzero(row).tolist()}

    def _in_order(self, view: View) -> list[JobView]:
        """Those who can be moved; the first keep what they have if there is too little."""
        movable = (job for job in view.jobs.values() if not job.pinned)
        return sorted(
            movable, key=lambda job: (-job.priority, job.gpu_seconds_at(view.now), job.number)
        )

    # deciding

    def decide(self, view: View) -> Decision:
        edit = view.schedule.edit()
        notes: dict[JobId, str] = {}
        if self._rounds.due:
            self._deploy(view, edit, notes)
        elif self._spoke is not None and self._spoke in view.jobs:
            self._answer(view, view.job(self._spoke), edit, notes)
        return Decision(schedule=edit.done(), wake_at=self._rounds.wake_at(view), notes=notes)

    def _deploy(self, view: View, edit: ScheduleEdit, notes: dict[JobId, str]) -> None:
        jobs = [view.job(job) for job in self._found]
        places = gpus_for(view, jobs, self._found)
        crowd = f"{len(view.jobs)} jobs on {view.cluster.n_gpus} GPUs"
        fair = fair_share(view)
        for job in jobs:
            gpus = places.get(job.id, ())
            if gpus == (job.wanted.gpus if job.wanted else ()):
                if not gpus:
                    notes[job.id] = f"no GPUs in this round: {crowd}, fitness {self._fitness:.3g}"
                continue
            if not gpus:
                edit.drop(job.id)
                notes[job.id] = f"loses its GPUs: {crowd}, fitness {self._fitness:.3g}"
                continue
            allocation = self._batches.on(job, gpus)
            edit.put(job.id, allocation)
            before = job.wanted.n_gpus if job.wanted else 0
            batch = f", batch {allocation.batch}" if allocation.batch else ""
            notes[job.id] = (
                f"{before} -> {len(gpus)} GPUs on {allocation.n_nodes} nodes{batch};"
                f" a fair share is {fair}; fitness {self._fitness:.3g} with {crowd}"
            )

    def _answer(
        self, view: View, job: JobView, edit: ScheduleEdit, notes: dict[JobId, str]
    ) -> None:
        """Between two rounds: a better batch, or a first GPU for a new job."""
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
            "search": self._search.save(),
            "batches": self._batches.save(),
            "spoke": self._spoke,
            "found": self._found,
            "fitness": self._fitness,
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._rounds.load(saved["rounds"])
        self._restarts.load(saved["restarts"])
        self._search.load(saved["search"])
        self._batches.load(saved["batches"])
        self._spoke = None if saved["spoke"] is None else JobId(saved["spoke"])
        self._found = {
            JobId(job): {NodeId(node): int(n) for node, n in counts.items()}
            for job, counts in saved["found"].items()
        }
        self._fitness = float(saved["fitness"])
