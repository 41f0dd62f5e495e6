"""Shortest job first: of the waiting jobs, the one with the shortest expected time starts next.

The length of a job is its declared epochs times the median epoch time of its kind so far. No job is
interrupted. `patience` limits how long a job can be overtaken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar

import numpy as np

from ones.core import Allocation, Decision, Event, Forecast, Gpu, JobId, JobView, PlanAdopted, View
from ones.core.events import CAPACITY_EVENTS, EpochFinished
from ones.models.packing import GpuPool
from ones.models.sharing import OwnerQuota

REMEMBERED = 50  # epochs of each kind


class Shortest:
    decides_on: ClassVar[frozenset[type[Event]]] = CAPACITY_EVENTS
    native_mechanism: ClassVar[str] = "checkpoint"

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        patience: float = field(
            default=3600.0, metadata={"help": "seconds after which a job is not overtaken any more"}
        )

        def __post_init__(self) -> None:
            if self.patience < 0:
                raise ValueError(f"patience {self.patience} is negative")

    def __init__(self, *, seed: int = 0, **settings: Any) -> None:
        self._settings = self.Settings(**settings)
        self._epoch_seconds: dict[str, list[float]] = {}  # kind -> last epoch times

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        if isinstance(event, EpochFinished) and event.step_seconds is not None:
            seen = self._epoch_seconds.setdefault(view.job(event.job).job.kind, [])
            seen.append(event.steps * event.step_seconds)
            del seen[:-REMEMBERED]

    def decide(self, view: View) -> Decision:
        edit = view.schedule.edit()
        pool, owners = GpuPool(view), OwnerQuota(view, [])
        notes: dict[JobId, str] = {}
        forecasts: dict[JobId, Forecast] = {}

        def place_in_line(job: JobView) -> tuple[float, bool, float, int]:
            return (-job.priority, not self._overdue(job, view.now), self._length(job), job.number)

        # reads the whole queue; `fifo` shows how to read only its head
        for job in sorted(view.waiting, key=place_in_line):
            size = _size(job)
            if size > len(pool):
                notes[job.id] = f"needs {size} GPUs, {len(pool)} free"
                if self._overdue(job, view.now):
                    break
            elif not owners.take(job.job.owner, size):
                notes[job.id] = f"{size} GPUs would exceed the owner's limit"
            else:
                gpus = pool.place(size)
                assert gpus is not None
                edit.put(job.id, _allocation(job, gpus))
                notes[job.id] = f"the shortest that fits: {job.job.epochs or 'unknown'} epochs"
                forecast = self._forecast(job, view.now)
                if forecast is not None:
                    forecasts[job.id] = forecast
        return Decision(schedule=edit.done(), notes=notes, forecasts=forecasts)

    def save(self) -> dict[str, Any]:
        return {"epoch_seconds": self._epoch_seconds}

    def load(self, saved: Mapping[str, Any]) -> None:
        self._epoch_seconds = {kind: list(seen) for kind, seen in saved["epoch_seconds"].items()}

    def _overdue(self, job: JobView, now: float) -> bool:
        waited = now - job.job.submitted_at - job.run_seconds_at(now)
        return waited >= self._settings.patience

    def _length(self, job: JobView) -> float:
        """Expected seconds. A job that does not declare its epochs counts as the longest."""
        if job.job.epochs is None:
            return inf
        return job.job.epochs * float(np.median(self._epoch_seconds.get(job.job.kind, [1.0])))

    def _forecast(self, job: JobView, now: float) -> Forecast | None:
        seen = self._epoch_seconds.get(job.job.kind)
        if job.job.epochs is None or not seen:
            return None
        left = job.job.epochs - job.progress.epochs
        low, eta, high = (now + left * s for s in np.percentile(seen, [5, 50, 95]).tolist())
        return Forecast(eta, low, high)


def _size(job: JobView) -> int:
    """The requested GPUs, within the limits of the job."""
    size = max(job.job.requested_gpus, job.job.min_gpus)
    return size if job.max_gpus is None else min(size, job.max_gpus)


def _allocation(job: JobView, gpus: tuple[Gpu, ...]) -> Allocation:
    batch = job.job.requested_batch or job.base_batch
    if job.description is None and (batch is None or batch < len(gpus)):
        return Allocation.as_scripted(gpus)  # the script's own batch, not known yet
    assert batch is not None
    return Allocation.even(gpus, max(batch, len(gpus)), job.local_limit)
