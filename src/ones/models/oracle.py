"""Knowledge that only an oracle has: the remaining work of a job, and its speed.

A policy that needs an oracle declares `takes_oracle` and gets it from the argument `oracle` of
`create` only. The simulator provides one (`ones.sim.oracle`); a real cluster has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ones.core.view import JobView


class RemainingWork(NamedTuple):
    """Remaining work of a job, on a number of packed GPUs with a global batch."""

    epochs: float
    epoch_seconds: float

    @property
    def seconds(self) -> float:
        return self.epochs * self.epoch_seconds


#: job, GPUs, global batch -> remaining work
Oracle = Callable[[JobView, int, int], RemainingWork]

#: error message of a policy that is created without one
ORACLE_NEEDED = (
    "needs an oracle, which knows how long jobs will take: only `ones sim` has one to give"
)


def unavailable_oracle(job: JobView, gpus: int, batch: int) -> RemainingWork:
    """An oracle for policies that are created only to check their settings."""
    raise AssertionError("this oracle must not be called")
