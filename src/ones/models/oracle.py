"""What only an oracle knows: how much of a job is left, and how fast it would go.

A policy that is built on such knowledge says so (`takes_oracle`) and gets it from the
argument `oracle` of `create`, from nowhere else. The simulator has one to give
(`ones.sim.oracle`); life has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ones.core.view import JobView


class Ahead(NamedTuple):
    """What is left of a job, on so many GPUs (packed) with such a global batch."""

    epochs: float
    epoch_seconds: float

    @property
    def seconds(self) -> float:
        return self.epochs * self.epoch_seconds


#: job, GPUs, global batch -> what is left
Oracle = Callable[[JobView, int, int], Ahead]

#: why a policy that needs one is refused without
NEEDED = "needs an oracle, which knows how long jobs will take: only `ones sim` has one to give"


def unasked(job: JobView, gpus: int, batch: int) -> Ahead:
    """An oracle for policies that are made only to see whether their settings are right."""
    raise AssertionError("nobody was to be asked")
