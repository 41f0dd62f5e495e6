"""First come, first served, at the requested size. No job is ever interrupted.

The baseline: what most clusters do today. `backfill` lets jobs behind a blocked head start if they
fit; without it the head blocks all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from ones.core import reasons
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
        for waiting in islice(view.waiting, DEPTH):
            size, owner = _size(waiting), waiting.job.owner
            limit, room = view.limit(owner), view.room(owner)
            if limit is not None and room is not None and size > room - taken.get(owner, 0):
                used = limit - room + taken.get(owner, 0)
                notes[waiting.id] = reasons.waiting_for_owner(owner, limit, used, size)
                continue  # this does not block others
            if size > len(pool):
                notes[waiting.id] = reasons.waiting_for_gpus(size)
                if not self._settings.backfill or not len(pool):
                    break
                continue
            notes[waiting.id] = self._start(edit, pool, waiting, size)
            taken[owner] = taken.get(owner, 0) + size
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
        return reasons.started(size, allocation.batch, "it was next in the queue")

    def save(self) -> dict[str, Any]:
        return {}

    def load(self, saved: Mapping[str, Any]) -> None:
        pass


def _size(waiting: JobView) -> int:
    job = waiting.job
    size = max(job.requested_gpus, job.min_gpus)
    return size if job.max_gpus is None else min(size, job.max_gpus)
