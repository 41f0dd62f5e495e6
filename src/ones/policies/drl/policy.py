"""A learned policy after Chic, for all-reduce: one job at a time gets another size.

A small network, trained offline on traces (`ones drl train`) and fine-tuned while deployed, gives
one job a new size, or changes nothing, at every submission and end and every 20 s. Batches are
fixed, and no job is preempted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

import numpy as np

from ones.core import events as ev
from ones.core import reasons
from ones.core.cluster import Gpu
from ones.core.events import CAPACITY_EVENTS, Event
from ones.core.job import JobId
from ones.core.plan import PlanAdopted
from ones.core.policy import Decision
from ones.core.schedule import Allocation
from ones.core.view import View
from ones.models.kinds import is_single_job, kind_of
from ones.models.packing import GpuPool
from ones.models.settings import setting
from ones.policies.drl.kind_table import KindTable
from ones.policies.drl.network import scores
from ones.policies.drl.online_learner import OnlineLearner
from ones.policies.drl.trained_weights import SHIPPED, from_file, shipped
from ones.policies.drl.window import JobWindow, WindowJob, fixed_batch, make_window


class Drl:
    decides_on: ClassVar[frozenset[type[Event]]] = CAPACITY_EVENTS
    native_mechanism: ClassVar[str] = "checkpoint"

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        tick: float = setting(20.0, "seconds until the next decision, without events")
        online: bool = setting(True, "fine-tune while deployed")
        sampled: bool = setting(
            False, "draw a choice at random instead of taking the most probable"
        )
        known_kinds: bool = setting(
            True, "start with the measurements of kinds from the training runs"
        )
        weights: str = setting(
            "",
            "file of `ones drl train`; empty: the shipped weights; calibrated, artifact: those"
            " trained on that workload",
        )

        def __post_init__(self) -> None:
            if not 0.1 <= self.tick < inf:
                raise ValueError(f"tick {self.tick} is not at least 0.1")

    def __init__(self, *, seed: int = 0, **settings: Any) -> None:
        self._settings = chosen = self.Settings(**settings)
        self._seed = seed
        learned = (
            shipped(chosen.weights) if chosen.weights in SHIPPED else from_file(chosen.weights)
        )
        self._kind_table = KindTable(learned.kinds if chosen.known_kinds else None)
        self._learner = OnlineLearner(learned.weights, learns=chosen.online)
        self._seen = 0  # number of events; random draws depend on it
        # of unfinished jobs: their kind, and batch and samples at the last epoch
        self._kinds: dict[JobId, str] = {}
        self._done: dict[JobId, tuple[int, int]] = {}
        self._choice_of_event: tuple[int, float, JobWindow | None, int] = (
            -1,
            0.0,
            None,
            0,
        )  # of one event

    # events

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        self._seen += 1
        match event:
            case ev.JobSubmitted():
                self._kinds[event.job.id] = kind_of(event.job)
            case ev.JobDescribed() | ev.MemoryLimitLearned():
                self._kind_table.learn_limit(self._kind(event.job, view), event.max_local_batch)
            case ev.ThroughputMeasured():
                kind, speed = self._kind(event.job, view), event.step_seconds
                self._kind_table.learn_speed(kind, event.configuration, speed, event.steps)
            case ev.EpochFinished():
                job = view.job(event.job)
                self._done[event.job] = (fixed_batch(job), job.progress.samples)
            case ev.JobEnded():
                self._learn_end(event)
            case _:
                pass
        if type(event) in self.decides_on:
            self._learner.set_unfinished(view.now, len(view.jobs))
            window, chosen = self._choice(view)
            if window is not None:
                self._learner.record(window.observation, chosen)

    def _kind(self, job: JobId, view: View) -> str:
        """The kind of a job, also of one submitted before this policy was created."""
        if job not in self._kinds:
            self._kinds[job] = kind_of(view.job(job).job)
        return self._kinds[job]

    def _learn_end(self, event: ev.JobEnded) -> None:
        if event.job not in self._kinds:
            return
        kind = self._kinds.pop(event.job)
        batch, samples = self._done.pop(event.job, (0, 0))
        if is_single_job(kind):
            self._kind_table.forget(kind)
        elif event.reason.completed and samples and batch:
            self._kind_table.learn_length(kind, batch, samples)

    # decisions

    def decide(self, view: View) -> Decision:
        if not view.jobs:
            return Decision(schedule=view.schedule)
        window, chosen = self._choice(view)
        wake_at = view.now + self._settings.tick
        move = None if window is None else window.move(chosen)
        notes = _notes_of_waiting(view, window)
        if move is None:
            return Decision(schedule=view.schedule, wake_at=wake_at, notes=notes)
        job, size = move
        edit = view.schedule.edit()
        allocation = self._allocation(job, _place(view, job, size))
        edit.put(job.job.id, allocation)
        notes[job.job.id] = reasons.changed(job.job.wanted, allocation, reasons.CHOSEN_BY_NETWORK)
        return Decision(schedule=edit.done(), wake_at=wake_at, notes=notes)

    def _choice(self, view: View) -> tuple[JobWindow | None, int]:
        """The choice, made once per event: the decision is the one recorded."""
        if self._choice_of_event[:2] != (self._seen, view.now):
            window = make_window(view, self._kind_table)
            chosen = 0 if window is None else self._pick(window)
            self._choice_of_event = (self._seen, view.now, window, chosen)
        return self._choice_of_event[2], self._choice_of_event[3]

    def _pick(self, window: JobWindow) -> int:
        logs = scores(self._learner.weights, window.observation)
        if self._settings.sampled:  # the maximum after adding Gumbel noise is a random draw
            logs += np.random.default_rng([self._seed, self._seen]).gumbel(size=len(logs))
        return int(np.argmax(logs))

    def _allocation(self, job: WindowJob, gpus: tuple[Gpu, ...]) -> Allocation:
        if job.job.description is None and job.batch < len(gpus):
            return Allocation.as_scripted(gpus)
        batch = max(job.batch, len(gpus))  # at least one sample per worker
        return Allocation.even(gpus, batch, self._kind_table.limit(job.job))

    # state

    def save(self) -> dict[str, Any]:
        return {
            "seen": self._seen,
            "kinds": dict(self._kinds),
            "done": {job: list(values) for job, values in self._done.items()},
            "book": self._kind_table.save(),
            "tuner": self._learner.save(),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._seen = int(saved["seen"])
        self._done = {JobId(j): (int(b), int(s)) for j, (b, s) in saved["done"].items()}
        self._kind_table = KindTable(saved["book"])
        self._learner.load(saved["tuner"])
        self._kinds = {JobId(job): str(kind) for job, kind in saved["kinds"].items()}
        self._choice_of_event = (-1, 0.0, None, 0)


def _place(view: View, job: WindowJob, size: int) -> tuple[Gpu, ...]:
    pool = GpuPool(view)
    held = job.job.wanted.gpus if job.job.wanted else ()
    if size < len(held):
        return pool.shrink(held, size)
    gpus = pool.grow(held, size) if held else pool.place(size)
    assert gpus is not None, "a valid move does not fit"
    return gpus


def _notes_of_waiting(view: View, window: JobWindow | None) -> dict[JobId, str]:
    jobs = window.jobs if window is not None else ()
    rule = reasons.ONE_JOB_AT_A_TIME if len(view.free) else reasons.NO_FREE_GPU
    return {
        job.job.id: reasons.waiting_by_rule(rule, job.job.job.min_gpus)
        for job in jobs
        if not job.gpus and not job.job.pinned
    }
