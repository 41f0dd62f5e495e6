"""The jobs that users submit in the simulation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job that a user submits, and how its script behaves."""

    number: int
    epochs: int
    dataset_size: int
    base_batch: int
    samples_per_second: float  # of one GPU
    max_local_batch: int | None = None
    joins: bool = True
    elastic: bool | None = True  # as the submission says
    min_gpus: int = 1
    requested_gpus: int = 1
    retries: int = 0
    fixed_seconds: float = 30.0
    is_slow: bool = False  # joins late
    failing_starts: int = 0  # processes that fail before they join
    failing_epoch: int = 0  # a worker fails when this epoch begins; 0: none does
    is_hostile: bool = False

    @property
    def join_seconds(self) -> tuple[float, float]:
        """Shortest and longest time from the start of a process until its script joins."""
        return (30.0, 90.0) if self.is_slow else (0.5, 4.0)
