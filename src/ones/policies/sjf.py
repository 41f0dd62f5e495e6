"""Shortest job first: of the waiting jobs, the one with the shortest expected time starts next.

The usual greedy policy. Sizes and batches are as requested, no job is interrupted, and a job that
does not fit is skipped. Lengths are predicted from completed jobs, or known (`knowledge=oracle`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from ones.core import reasons
from ones.core.events import Event
from ones.core.plan import PlanAdopted
from ones.core.view import JobView, View
from ones.models.completed_lengths import CompletedLengths
from ones.models.kinds import kind_of
from ones.models.oracle import ORACLE_NEEDED, Oracle
from ones.models.preemptive_policy import PreemptivePolicy
from ones.models.rigid_jobs import Rank, WaitingGroup, batch_of, size_of
from ones.models.settings import check_settings, setting

#: better than any waiting job: no job is interrupted
RUNNING: Rank = (-inf,)


class Sjf(PreemptivePolicy):
    takes_oracle: ClassVar[bool] = True

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        knowledge: str = setting(
            "predicted",
            "lengths: predicted from completed jobs of the kind, or true ones from an oracle",
            options=("predicted", "oracle"),
        )

        def __post_init__(self) -> None:
            check_settings(self)

    def __init__(self, *, seed: int = 0, oracle: Oracle | None = None, **settings: Any) -> None:
        super().__init__()
        self._settings = self.Settings(**settings)
        self._oracle = oracle if self._settings.knowledge == "oracle" else None
        if self._settings.knowledge == "oracle" and oracle is None:
            raise ValueError(f"knowledge=oracle {ORACLE_NEEDED}")
        self._lengths = CompletedLengths()

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        if not isinstance(event, PlanAdopted):
            self._lengths.observe(event, view)
        super().observe(event, view)

    def waiting_key(self, job: JobView) -> tuple[int | tuple[str, int], Rank]:
        if self._oracle is not None:
            size = size_of(job)
            seconds = self._oracle(job, size, batch_of(job, size)).seconds
            return 0, (-job.priority, seconds, job.number)
        # jobs of one cell have the same predicted length at any time
        return (kind_of(job.job), job.job.epochs or 0), (-job.priority, job.number)

    def waiting_rank(self, group: WaitingGroup, key: Rank, now: float) -> Rank:
        if isinstance(group.cell, int):
            return key
        kind, epochs = group.cell
        seconds = self._lengths.of(kind, group.size, epochs or None)
        return (key[0], 0.0 if seconds is None else seconds, key[1])

    def running_rank(self, job: JobView, now: float) -> Rank:
        return RUNNING

    def start_why(self, job: JobView) -> str:
        return "it was the shortest waiting job that fits"

    def wait_note(self, job: JobView) -> str:
        return reasons.waiting_by_rule(reasons.SHORTER_FIRST, size_of(job))

    def save(self) -> dict[str, Any]:
        return super().save() | {"lengths": self._lengths.save()}

    def load(self, saved: Mapping[str, Any]) -> None:
        super().load(saved)
        self._lengths.load(saved["lengths"])
