"""A policy that makes random valid decisions."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

from ones.core import (
    Allocation,
    Decision,
    Event,
    Gpu,
    NodeState,
    PlanAdopted,
    View,
)
from ones.core.events import PROGRESS_EVENTS


class RandomPolicy:
    """A decision depends on the number of events observed, so asking twice gives the same one."""

    decides_on: ClassVar[frozenset[type[Event]]] = PROGRESS_EVENTS
    native_mechanism: ClassVar[str] = "elastic"

    def __init__(self, seed: int, *, eager: float = 0.6) -> None:
        self._seed, self._eager = seed, eager
        self._seen = 0

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        self._seen += 1

    def decide(self, view: View) -> Decision:
        dice = Random(f"{self._seed}/{self._seen}")
        edit = view.schedule.edit()
        movable = [job for job in view.jobs.values() if not job.pinned]
        dice.shuffle(movable)
        changing = [job for job in movable if dice.random() < self._eager]
        pool: list[Gpu] = list(view.free)
        for job in changing:
            if job.wanted is not None:
                pool += [g for g in job.wanted.gpus if view.cluster.state_of(g) is NodeState.UP]
                edit.drop(job.id)
        dice.shuffle(pool)
        for job in changing:
            size = min(dice.randint(0, 4), len(pool), job.max_gpus or len(pool))
            if size < job.job.min_gpus:
                continue
            mine, pool = pool[:size], pool[size:]
            if job.description is None:
                edit.put(job.id, Allocation.as_scripted(mine))
            else:
                batch = max(size, dice.choice((8, 16, 32, 64)))
                edit.put(job.id, Allocation.even(mine, batch, job.local_limit))
        awake = view.now + dice.choice((1.0, 5.0)) if movable else float("inf")
        return Decision(schedule=edit.done(), wake_at=awake)

    def save(self) -> dict[str, Any]:
        return {"seen": self._seen}

    def load(self, saved: Mapping[str, Any]) -> None:
        self._seen = int(saved["seen"])
