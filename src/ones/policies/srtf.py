"""Shortest remaining time first: an oracle, at the sizes that users asked for.

Knows how long every job will still take (`oracle`), which nobody does in life, and
interrupts long jobs for short ones. Its line is what prediction alone could win.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from ones.core.cluster import Gpu
from ones.core.view import JobView, View
from ones.models.interrupting import Interrupting
from ones.models.oracle import NEEDED, Oracle
from ones.models.packing import Room
from ones.models.rigid import Rank, batch_of, size_of


class Srtf(Interrupting):
    takes_oracle: ClassVar[bool] = True
    follows_epochs: ClassVar[bool] = True

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        count_restarts: bool = field(
            default=True,
            metadata={"help": "interrupt only if the time gained is more than a restart costs"},
        )
        consolidate: bool = field(
            default=True,
            metadata={"help": "wait for the fewest nodes that a job fits on"},
        )

    def __init__(self, *, seed: int = 0, oracle: Oracle | None = None, **settings: Any) -> None:
        super().__init__()
        self._settings = self.Settings(**settings)
        if oracle is None:
            raise ValueError(NEEDED)
        self._oracle = oracle

    def _left(self, job: JobView) -> float:
        """Seconds of training, at the size that it has or will have."""
        size = size_of(job) if job.wanted is None else job.wanted.n_gpus
        return self._oracle(job, size, batch_of(job, size)).seconds

    def _restart(self, job: JobView) -> float:
        """What coming back costs a job that is interrupted, or was."""
        if not self._settings.count_restarts or job.started_at is None:
            return 0.0
        return job.switch_cost.restart_seconds

    def waiting_key(self, job: JobView) -> tuple[int, Rank]:
        return 0, (-job.priority, self._left(job) + self._restart(job), job.number)

    def running_rank(self, job: JobView, now: float) -> Rank:
        # interrupting it would be paid for when it comes back: r + restart < R pays, r < R need not
        return (-job.priority, self._left(job) - self._restart(job), job.number)

    def place(self, view: View, room: Room, job: JobView, size: int) -> tuple[Gpu, ...] | None:
        return room.place_packed(size) if self._settings.consolidate else room.place(size)

    def start_note(self, job: JobView, nodes: int) -> str:
        return f"its turn: {self._left(job):.0f} s are left of it, the least of those that fit"

    def wait_note(self, job: JobView) -> str:
        return f"waits for shorter ones: {self._left(job):.0f} s are left of it"
