"""How jobs really train: the hidden truth of the simulator. No policy can import this.

`JobPhysics` is the laws of one job, as the engine uses them. Where they come from
differs: `kinds` has formulas with the numbers of the data file, `recorded` what was
measured in a run that is simulated again; `lengths.physics_of` knows which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ones.core.job import EndReason
from ones.core.schedule import Allocation


@dataclass(frozen=True, slots=True)
class SwitchTimes:
    """Seconds that changes of a job take. What is 0 unless told is small beside the rest on a
    cluster of GPUs, and is not on a machine where jobs take a minute."""

    first_start: float
    newcomer: float  # in the background, while the others train
    regroup: float  # nobody joins
    rescale: float  # somebody joins: regroup and broadcast
    restart: float  # through a checkpoint
    notice: float = 0.0  # in the background, where nobody joins: until all know and are connected
    leave: float = 0.0  # from the switch until the process of a leaver is gone
    stop: float = 0.0  # from the last step until all is saved and all processes are gone
    finish: float = 0.0  # from the last epoch until the end is told
    clear: float = 0.0  # and from there until its processes are gone
    epoch: float = 0.0  # between two epochs
    recover: float | None = None  # after a worker was lost; None: as `regroup`
    warms_early: bool = True  # newcomers of a second stroke begin with the first


@dataclass(frozen=True, slots=True)
class Setback:
    """What a batch that grew too suddenly does."""

    epochs: float = 0.0  # effective epochs lost
    loss_rise: float = 0.0  # by this part
    loss_epochs: float = 1.0  # in which the rise falls to a third


@dataclass(frozen=True, slots=True)
class Noise:
    """How exactly a job reports: lognormal sigmas."""

    step_seconds: float  # of one step; a mean over many is better
    gradient_noise: float


@dataclass(frozen=True, slots=True)
class Death:
    """An end that no stop rule brings: after so much progress, or after so many true epochs."""

    reason: EndReason
    message: str
    progress: float | None = None
    epochs: float | None = None


class JobPhysics(Protocol):
    """The laws of one job. Progress is counted in effective epochs."""

    @property
    def optimizer(self) -> str: ...

    @property
    def parameter_bytes(self) -> int: ...

    @property
    def max_local_batch(self) -> int | None: ...

    @property
    def switch(self) -> SwitchTimes: ...

    @property
    def report_noise(self) -> Noise: ...

    @property
    def death(self) -> Death | None: ...

    def step_seconds(self, allocation: Allocation, sharing: int = 1) -> float:
        """One optimizer step; `sharing` jobs use the busiest network card of this one."""
        ...

    def efficiency(self, batch: int, progress: float) -> float:
        """What a sample is worth at this batch, at most 1."""
        ...

    def noise_scale(self, progress: float) -> float | None:
        """Gradient noise scale, in samples; None: the job does not know it."""
        ...

    def accuracy(self, progress: float, noise: float) -> float | None:
        """Validation accuracy; `noise` is a standard normal draw."""
        ...

    def loss(self, progress: float) -> float | None: ...

    def setback(self, before: int, after: int) -> Setback:
        """Of a change from one batch to another."""
        ...
