"""Lengths of completed jobs by kind: a prediction for the next jobs of that kind.

A prediction is the mean of the completed jobs of the kind and size; without any, of the kind;
without these, of all completed jobs. Jobs that declare epochs are compared by seconds per epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any, NamedTuple

from ones.core.events import EpochFinished, Event, JobEnded
from ones.core.job import JobId
from ones.core.view import JobView, View
from ones.models.bounded_table import MAX_KINDS, set_bounded
from ones.models.kinds import is_single_job, kind_of

MAX_ENDED = 50  # completed jobs kept of a kind
ALL = ""  # the entry of all kinds together


class CompletedJob(NamedTuple):
    gpus: int
    seconds: float  # of running
    epochs: int


class CompletedLengths:
    def __init__(self) -> None:
        self._kinds: dict[str, list[CompletedJob]] = {}
        self._running: dict[JobId, tuple[str, CompletedJob]] = {}  # as of their last epoch

    def observe(self, event: Event, view: View) -> None:
        match event:
            case EpochFinished():
                job = view.job(event.job)
                gpus = job.wanted.n_gpus if job.wanted else 1
                seen = CompletedJob(gpus, job.run_seconds_at(view.now), job.progress.epochs)
                self._running[event.job] = (kind_of(job.job), seen)
            case JobEnded():
                kind, seen = self._running.pop(event.job, ("", CompletedJob(1, 0.0, 0)))
                if event.reason.completed and seen.seconds > 0:
                    for name in (ALL,) if is_single_job(kind) else (kind, ALL):
                        entry = [*self._kinds.get(name, ()), seen][-MAX_ENDED:]
                        set_bounded(self._kinds, name, entry, MAX_KINDS)
            case _:
                pass

    def seconds(self, job: JobView, gpus: int) -> float | None:
        """Predicted running time of the whole job; None: no job has completed."""
        return self.of(kind_of(job.job), gpus, job.job.epochs)

    def of(self, kind: str, gpus: int, epochs: int | None) -> float | None:
        alike = self._kinds.get(kind) or self._kinds.get(ALL)
        if not alike:
            return None
        alike = [job for job in alike if job.gpus == gpus] or alike
        if epochs is not None:
            return epochs * fmean(job.seconds / max(1, job.epochs) for job in alike)
        return fmean(job.seconds for job in alike)

    def save(self) -> dict[str, Any]:
        return {
            "kinds": {kind: [list(job) for job in jobs] for kind, jobs in self._kinds.items()},
            "running": {job: [kind, *seen] for job, (kind, seen) in self._running.items()},
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._kinds = {
            kind: [CompletedJob(int(g), float(s), int(e)) for g, s, e in jobs]
            for kind, jobs in saved["kinds"].items()
        }
        self._running = {
            JobId(job): (str(kind), CompletedJob(int(g), float(s), int(e)))
            for job, (kind, g, s, e) in saved["running"].items()
        }
