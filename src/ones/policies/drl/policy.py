"""A learned policy, in the manner of Chic, for all-reduce: one job at a time gets another size.

A small network, trained offline on traces (`ones drl train`) and tuned while deployed,
looks at the jobs and gives one of them a size, or does nothing, at every submission and
end and every 20 s. Batches are fixed, and nobody is preempted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar

import numpy as np

from ones.core import events as ev
from ones.core.cluster import Gpu
from ones.core.events import CAPACITY_EVENTS, Event
from ones.core.job import JobId
from ones.core.plan import PlanAdopted
from ones.core.policy import Decision
from ones.core.schedule import Allocation
from ones.core.view import View
from ones.models.packing import Room
from ones.policies.drl.kinds import KindBook, is_nameless, kind_of
from ones.policies.drl.learned import from_file, shipped
from ones.policies.drl.network import scores
from ones.policies.drl.online import Tuner
from ones.policies.drl.window import Seat, Window, fixed_batch, look_around


class Drl:
    decides_on: ClassVar[frozenset[type[Event]]] = CAPACITY_EVENTS
    native_mechanism: ClassVar[str] = "checkpoint"

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        tick: float = field(
            default=20.0, metadata={"help": "seconds to the next decision, when nothing happens"}
        )
        online: bool = field(
            default=True, metadata={"help": "go on learning while deployed, in small steps"}
        )
        sampled: bool = field(
            default=False, metadata={"help": "draw from the chances instead of taking the best"}
        )
        known_kinds: bool = field(
            default=True,
            metadata={"help": "start with what the training runs taught about kinds of job"},
        )
        weights: str = field(
            default="", metadata={"help": "file of `ones drl train`; empty: the shipped one"}
        )

        def __post_init__(self) -> None:
            if not 0.1 <= self.tick < inf:
                raise ValueError(f"tick {self.tick} is not at least 0.1")

    def __init__(self, *, seed: int = 0, **settings: Any) -> None:
        self._settings = chosen = self.Settings(**settings)
        self._seed = seed
        learned = from_file(chosen.weights) if chosen.weights else shipped()
        self._book = KindBook(learned.kinds if chosen.known_kinds else None)
        self._tuner = Tuner(learned.weights, learns=chosen.online)
        self._seen = 0  # what was observed; draws depend on it
        # of unfinished jobs: kind; batch and samples at the last epoch
        self._kinds: dict[JobId, str] = {}
        self._done: dict[JobId, tuple[int, int]] = {}
        self._asked: tuple[int, float, Window | None, int] = (-1, 0.0, None, 0)  # only a cache

    # learning

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        self._seen += 1
        match event:
            case ev.JobSubmitted():
                self._kinds[event.job.id] = kind_of(event.job)
            case ev.JobDescribed() | ev.MemoryLimitLearned():
                self._book.learn_limit(self._kind(event.job, view), event.max_local_batch)
            case ev.ThroughputMeasured():
                kind, speed = self._kind(event.job, view), event.step_seconds
                self._book.learn_speed(kind, event.configuration, speed, event.steps)
            case ev.EpochFinished():
                told = view.job(event.job)
                self._done[event.job] = (fixed_batch(told), told.progress.samples)
            case ev.JobEnded():
                self._learn_end(event)
            case _:
                pass
        if type(event) in self.decides_on:
            self._tuner.passed(view.now, len(view.jobs))
            window, chosen = self._choice(view)
            if window is not None:
                self._tuner.decided(window.look, chosen)

    def _kind(self, job: JobId, view: View) -> str:
        """Also of one that was here before this policy."""
        if job not in self._kinds:
            self._kinds[job] = kind_of(view.job(job).job)
        return self._kinds[job]

    def _learn_end(self, event: ev.JobEnded) -> None:
        if event.job not in self._kinds:
            return
        kind = self._kinds.pop(event.job)
        batch, samples = self._done.pop(event.job, (0, 0))
        if is_nameless(kind):
            self._book.forget(kind)
        elif event.reason.completed and samples and batch:
            self._book.learn_length(kind, batch, samples)

    # deciding

    def decide(self, view: View) -> Decision:
        if not view.jobs:
            return Decision(schedule=view.schedule)
        window, chosen = self._choice(view)
        wake_at = view.now + self._settings.tick
        move = None if window is None else window.move(chosen)
        notes = _notes_of_waiting(view, window)
        if move is None:
            return Decision(schedule=view.schedule, wake_at=wake_at, notes=notes)
        seat, size = move
        edit = view.schedule.edit()
        edit.put(seat.job.id, self._allocation(seat, _place(view, seat, size)))
        notes[seat.job.id] = _note(seat, size, len(view.free))
        return Decision(schedule=edit.done(), wake_at=wake_at, notes=notes)

    def _choice(self, view: View) -> tuple[Window | None, int]:
        """Made once for an event: what is remembered is what was decided."""
        if self._asked[:2] != (self._seen, view.now):
            window = look_around(view, self._book)
            chosen = 0 if window is None else self._pick(window)
            self._asked = (self._seen, view.now, window, chosen)
        return self._asked[2], self._asked[3]

    def _pick(self, window: Window) -> int:
        chances = scores(self._tuner.weights, window.look)
        if self._settings.sampled:  # the largest after adding such noise is a draw from them
            chances += np.random.default_rng([self._seed, self._seen]).gumbel(size=len(chances))
        return int(np.argmax(chances))

    def _allocation(self, seat: Seat, gpus: tuple[Gpu, ...]) -> Allocation:
        if seat.job.description is None and seat.batch < len(gpus):
            return Allocation.as_scripted(gpus)
        batch = max(seat.batch, len(gpus))  # a sample for each worker
        return Allocation.even(gpus, batch, self._book.limit(seat.job))

    # memory

    def save(self) -> dict[str, Any]:
        return {
            "seen": self._seen,
            "kinds": dict(self._kinds),
            "done": {job: list(told) for job, told in self._done.items()},
            "book": self._book.save(),
            "tuner": self._tuner.save(),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._seen = int(saved["seen"])
        self._done = {JobId(j): (int(b), int(s)) for j, (b, s) in saved["done"].items()}
        self._book = KindBook(saved["book"])
        self._tuner.load(saved["tuner"])
        self._kinds = {JobId(job): str(kind) for job, kind in saved["kinds"].items()}
        self._asked = (-1, 0.0, None, 0)


def _place(view: View, seat: Seat, size: int) -> tuple[Gpu, ...]:
    room = Room(view)
    held = seat.job.wanted.gpus if seat.job.wanted else ()
    if size < len(held):
        return room.shrink(held, size)
    gpus = room.grow(held, size) if held else room.place(size)
    assert gpus is not None, "a move was open for which there is no room"
    return gpus


def _note(seat: Seat, size: int, free: int) -> str:
    left = f"about {seat.seconds_left:,.0f} s left on one GPU"
    if not seat.gpus:
        return f"chosen to start on {_gpus(size)} of {free} free, {left}"
    way = "grows" if size > seat.gpus else "shrinks"
    return f"chosen among the jobs: {way} from {seat.gpus} to {_gpus(size)}, {left}"


def _notes_of_waiting(view: View, window: Window | None) -> dict[JobId, str]:
    seats = window.seats if window is not None else ()
    reason = "waits: one job is decided on at a time" if len(view.free) else "waits: no GPU is free"
    return {seat.job.id: reason for seat in seats if not seat.gpus and not seat.job.pinned}


def _gpus(n: int) -> str:
    return "1 GPU" if n == 1 else f"{n} GPUs"
