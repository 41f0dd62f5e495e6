"""Parts `update`: when S_* replaces the schedule, "after all the running jobs finish at least one
epoch"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ones.core.job import JobId
from ones.core.view import JobView

#: `all`: every running job blocks an update, those that start up or are being changed too;
#: `settled`: not these; `affected`: only jobs that the update would change
RULES = ("all", "settled", "affected")


class UpdateGate:
    """Counts epochs since the last update.

    An update is an adopted plan of a decision that was allowed to change running jobs. Starts on
    free GPUs in between, and second steps of earlier plans, are none.
    """

    def __init__(self, rule: str) -> None:
        self._rule = rule
        self._trained: set[JobId] = set()  # jobs with an epoch since the last update
        self._changeable: set[JobId] = set()  # a plan that acts on one of these is an update

    def finished_epoch(self, job: JobId) -> None:
        self._trained.add(job)

    def look(self, jobs: Iterable[JobView]) -> None:
        """Before a decision: which jobs it may change. Jobs without elasticity never count."""
        elastic = [job for job in jobs if job.job.elastic]
        movable = [job for job in elastic if not job.pinned]
        if self._rule == "affected":
            self._changeable = {job.id for job in movable if job.wanted is not None}
            return
        blocking = elastic if self._rule == "all" else movable
        is_open = self.have_trained([job.id for job in blocking if job.wanted is not None])
        self._changeable = {job.id for job in movable} if is_open else set()

    def close(self) -> None:
        """No decision follows this event."""
        self._changeable = set()

    @property
    def may_open(self) -> bool:
        """Whether an update is possible at all in this decision."""
        return self._rule == "affected" or bool(self._changeable)

    def allows(self, affected: Sequence[JobId]) -> bool:
        """Whether an update that changes these running jobs may be deployed."""
        if self._rule == "affected":
            return self.have_trained(affected)
        return bool(self._changeable)

    def have_trained(self, jobs: Iterable[JobId]) -> bool:
        return self._trained.issuperset(jobs)

    def adopted(self, jobs: Iterable[JobId]) -> bool:
        """Whether a plan with actions for these jobs is an update; then epochs count anew."""
        is_update = not self._changeable.isdisjoint(jobs)
        if is_update:
            self._trained.clear()
        self._changeable = set()
        return is_update

    def forget(self, job: JobId) -> None:
        self._trained.discard(job)

    def save(self) -> dict[str, Any]:
        return {"trained": sorted(self._trained), "changeable": sorted(self._changeable)}

    def load(self, saved: Mapping[str, Any]) -> None:
        self._trained = set(map(JobId, saved["trained"]))
        self._changeable = set(map(JobId, saved["changeable"]))
