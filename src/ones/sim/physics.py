"""Interface of the training model of one job. Policies cannot import it.

`JobPhysics` has two implementations: `kinds` (formulas with the numbers of the data file) and
`recorded` (measurements of a run that is simulated again). `lengths.physics_of` chooses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ones.core.job import EndReason
from ones.core.schedule import Allocation


@dataclass(frozen=True, slots=True)
class SwitchTimes:
    """Seconds that changes of a job take. Fields with default 0 are negligible on a GPU cluster,
    but not on a machine where jobs take a minute."""

    first_start: float
    join: float  # start of a joining worker, in the background while the job trains
    regroup: float  # pause of a rescale without joining workers
    rescale: float  # pause of a rescale with joining workers: regroup and broadcast
    restart: float  # through a checkpoint
    resume: float = 0.5  # of a suspended job on the same GPUs
    migrate: float = 5.0  # of a suspended job on other GPUs
    notice: float = (
        0.0  # without joining workers: until all workers know the order and are connected
    )
    leave: float = 0.0  # from the switch until the process of a leaving worker is gone
    stop: float = 0.0  # from the last step until all is saved and all processes are gone
    finish: float = 0.0  # from the last epoch until the end is reported
    clear: float = 0.0  # from the report of the end until all processes are gone
    epoch: float = 0.0  # between two epochs
    recover: float | None = None  # after a worker was lost; None: as `regroup`
    warms_early: bool = (
        True  # joining workers of the second step of a move start with the first step
    )


@dataclass(frozen=True, slots=True)
class EpochRules:
    """How a job goes through its data."""

    load: float = 0.0  # seconds of the input pipeline whenever an epoch begins or goes on
    #: time of the evaluation before training, as a share of an epoch; None: there is none
    evaluation: float | None = None
    #: a rescale or stop loses the position in the epoch: from half of it on the epoch counts as
    #: done, before that its samples count without an epoch
    restart: bool = False


@dataclass(frozen=True, slots=True)
class Setback:
    """Effect of a batch that grew too suddenly."""

    epochs: float = 0.0  # effective epochs lost
    loss_rise: float = 0.0  # relative rise of the loss
    loss_epochs: float = 1.0  # epochs in which the rise falls to 1/e


@dataclass(frozen=True, slots=True)
class Noise:
    """Measurement noise of a job's reports: lognormal sigmas, unless a field says otherwise."""

    step_seconds: float  # of one step; the mean over n steps has sigma / sqrt(n)
    gradient_noise: float
    gradient_bias: float = 1.0  # factor on every reported gradient noise scale
    loss: float = 0.0
    loss_waves: float = 0.0  # amplitude of slow rises and falls of the loss, as a part of it


@dataclass(frozen=True, slots=True)
class Death:
    """An end that is not caused by a stop rule: after `progress` effective epochs, or after
    `epochs` passes over the data."""

    reason: EndReason
    message: str
    progress: float | None = None
    epochs: float | None = None


class JobPhysics(Protocol):
    """Training model of one job. The unit of progress is effective epochs."""

    @property
    def optimizer(self) -> str: ...

    @property
    def parameter_bytes(self) -> int: ...

    @property
    def max_local_batch(self) -> int | None: ...

    @property
    def switch(self) -> SwitchTimes: ...

    @property
    def epoch_rules(self) -> EpochRules: ...

    @property
    def report_noise(self) -> Noise: ...

    @property
    def death(self) -> Death | None: ...

    def step_seconds(self, allocation: Allocation, sharing: int = 1) -> float:
        """One optimizer step; `sharing` jobs use the busiest network card of this one."""
        ...

    def busy_share(self, allocation: Allocation) -> float:
        """Part of a step in which the GPU computes, 0 to 1; 1 if that is not known."""
        ...

    def efficiency(self, batch: int, progress: float) -> float:
        """Statistical efficiency: progress per sample at this batch, at most 1."""
        ...

    def noise_scale(self, progress: float) -> float | None:
        """Gradient noise scale, in samples; None: the job does not know it."""
        ...

    def accuracy(self, progress: float, noise: float) -> float | None:
        """Validation accuracy; `noise` is a standard normal draw."""
        ...

    def loss(self, progress: float) -> float | None: ...

    def setback(self, before: int, after: int) -> Setback:
        """Effect of a change from one batch to another."""
        ...
