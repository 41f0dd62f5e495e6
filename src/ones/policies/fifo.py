"""First come, first served, at the requested size. No job is ever interrupted.

The baseline: what most clusters do today. `backfill` lets jobs behind a blocked head start if they
fit; without it the head blocks all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from ones.core.events import CAPACITY_EVENTS, Event
from ones.core.job import JobId
from ones.core.plan import PlanAdopted
from ones.core.policy import Decision
from ones.core.schedule import Allocation, ScheduleEdit
from ones.core.view import JobView, View
from ones.models.packing import GpuPool
from ones.models.settings import setting

#: number of waiting jobs that one decision considers
DEPTH = 100


class Fifo:
    decides_on: ClassVar[frozenset[type[Event]]] = CAPACITY_EVENTS
    native_mechanism: ClassVar[str] = "checkpoint"

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        backfill: bool = setting(False, "jobs behind a blocked head may start if they fit")

    def __init__(self, *, seed: int = 0, **settings: Any) -> None:
        self._settings = self.Settings(**settings)

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        pass

    def decide(self, view: View) -> Decision:
        if not view.n_waiting:
            return Decision(schedule=view.schedule)
        edit = view.schedule.edit()
        pool = GpuPool(view)
        taken: dict[str, int] = {}  # by owner, in this decision
        notes: dict[JobId, str] = {}
        blocked = False
        for waiting in islice(view.waiting, DEPTH):
            size = _size(waiting)
            owner_room = view.room(waiting.job.owner)
            if owner_room is not None and size > owner_room - taken.get(waiting.job.owner, 0):
                notes[waiting.id] = f"waits: {_gpus(size)} would exceed the limit of its owner"
                continue  # this does not block others
            if size > len(pool):
                place = "first in line" if not blocked else "waits behind others"
                notes[waiting.id] = f"{place}: needs {_gpus(size)}, {len(pool)} free"
                blocked = True
                if not self._settings.backfill or not len(pool):
                    break
                continue
            notes[waiting.id] = self._start(edit, pool, waiting, size)
            taken[waiting.job.owner] = taken.get(waiting.job.owner, 0) + size
        return Decision(schedule=edit.done(), notes=notes)

    def _start(self, edit: ScheduleEdit, pool: GpuPool, waiting: JobView, size: int) -> str:
        gpus = pool.place(size)
        assert gpus is not None
        batch = waiting.job.requested_batch or waiting.base_batch or 0
        if waiting.description is not None:
            batch = max(batch, size)
        if batch < size:
            allocation = Allocation.as_scripted(gpus)
        else:
            allocation = Allocation.even(gpus, batch, waiting.local_limit)
        edit.put(waiting.id, allocation)
        return f"its turn: {_gpus(size)} on {_nodes(allocation.n_nodes)}"

    def save(self) -> dict[str, Any]:
        return {}

    def load(self, saved: Mapping[str, Any]) -> None:
        pass


def _size(waiting: JobView) -> int:
    job = waiting.job
    size = max(job.requested_gpus, job.min_gpus)
    return size if job.max_gpus is None else min(size, job.max_gpus)


def _gpus(n: int) -> str:
    return "1 GPU" if n == 1 else f"{n} GPUs"


def _nodes(n: int) -> str:
    return "1 node" if n == 1 else f"{n} nodes"
