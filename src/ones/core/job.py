"""Jobs as frozen values: the user's request, the script's description, measured progress.

`Job` is known at submission, `Description` once the script has joined, `Progress` grows with every
report. Symbols in comments are the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import NamedTuple, NewType

from ones.errors import InvalidJobError
from ones.stopping import StopRule
from ones.wire.bounds import Finite, Gpus, Number, PlanNumber, Positive, Time, Value

JobId = NewType("JobId", str)


class EndReason(StrEnum):
    CONVERGED = "converged"  # a stop rule on its accuracy or loss was met
    FINISHED = "finished"  # all epochs are done, or the script ended by itself
    FAILED = "failed"
    CANCELLED = "cancelled"
    REFUSED = "refused"  # the policy did not admit it; it has never run

    @property
    def completed(self) -> bool:
        return self in (EndReason.CONVERGED, EndReason.FINISHED)


class Generation(NamedTuple):
    """Identifies the configuration that a report belongs to.

    It is the number of the plan that ordered the configuration, and how often the workers have
    re-formed by themselves since.
    """

    plan: PlanNumber
    incarnation: Number = 0


class Dependency(Value, frozen=True):
    """Another job that must end before a job may start."""

    job: JobId
    any_end: bool = False  # False: it must converge or finish


class Job(Value, frozen=True, kw_only=True):
    """The user's request. A changed priority is in the job's record, not here."""

    id: JobId
    submitted_at: Time  # seconds on the engine's clock, as every time in core
    kind: str = ""  # policies learn about a job from earlier jobs of the same kind
    owner: str = ""
    command: tuple[str, ...] = ()
    priority: Finite = 0.0  # higher first
    min_gpus: Gpus = 1
    max_gpus: Gpus | None = None  # None: no maximum
    requested_gpus: Gpus = 1  # for policies that do not choose a size
    requested_batch: Positive | None = None  # global; None: the script's own
    min_batch: Positive | None = None  # smallest global batch that the user allows; None: no limit
    max_batch: Positive | None = None  # largest global batch that the user allows; None: no limit
    deadline: float | None = None  # wished end, in seconds after the submission; None: no wish
    epochs: Positive | None = None  # declared by the user, or by the script's loop
    stop: StopRule = StopRule()
    retries: Number = 0  # how often the job is started again after all its workers died
    elastic: bool = True  # False: a stop or change would lose the job's work, so it keeps its GPUs
    after: tuple[Dependency, ...] = ()  # jobs that must end before this one starts
    array: str = ""  # id of the array that the job is a task of
    array_limit: Positive | None = None  # unfinished tasks of the array that may start; None: all

    def __post_init__(self) -> None:
        if not self.id:
            raise InvalidJobError("''", "the id is empty")
        for name in (
            "min_gpus",
            "max_gpus",
            "requested_gpus",
            "requested_batch",
            "min_batch",
            "max_batch",
            "epochs",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidJobError(self.id, f"{name} {value} is not at least 1")
        if self.deadline is not None and not 0.0 < self.deadline < inf:
            raise InvalidJobError(self.id, f"deadline {self.deadline} is not above 0")
        if self.retries < 0:
            raise InvalidJobError(self.id, f"retries {self.retries} is negative")
        if self.max_gpus is not None and self.max_gpus < self.min_gpus:
            raise InvalidJobError(
                self.id, f"max_gpus {self.max_gpus} is less than min_gpus {self.min_gpus}"
            )
        if self.max_batch is not None and self.max_batch < (self.min_batch or 1):
            raise InvalidJobError(
                self.id, f"max_batch {self.max_batch} is less than min_batch {self.min_batch}"
            )
        if not self.submitted_at >= 0.0:
            raise InvalidJobError(self.id, f"submitted_at {self.submitted_at} is negative")

    def bounded_batch(self, batch: int) -> int:
        """The batch, or the nearest one that the user allows."""
        batch = max(batch, self.min_batch or 1)
        return min(batch, self.max_batch or batch)


class Description(Value, frozen=True, kw_only=True):
    """What the script reports about itself when it joins."""

    dataset_size: int  # samples in one epoch (‖D‖)
    base_batch: int  # global batch that the script's learning rate was tuned for
    optimizer: str = ""  # family: sgd, adam, ...
    parameter_bytes: int = 0
    max_local_batch: int | None = None  # samples that fit one GPU; None: not known yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress as measured and reported by the workers, never predicted."""

    samples: int = 0  # Y_processed, the current epoch included
    epochs: int = 0  # finished epochs
    steps: int = 0  # the current epoch included
    first_loss: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    step_seconds: float | None = None  # mean of the last epoch
    gradient_noise: float | None = None  # noise scale, in samples
    effective_samples: float | None = None  # as of the last report; None: it did not say


class Configuration(NamedTuple):
    """The GPUs, nodes and batch with which a measurement was made."""

    gpus: Gpus
    nodes: Gpus
    batch: Positive  # global, per optimizer step (B_j)
    micro_steps: Positive = 1


class StepTime(NamedTuple):
    seconds: float  # mean over `steps`
    steps: int


class SwitchCost(NamedTuple):
    """Cost of a change in seconds of training: a prior until the job's own pauses are known."""

    rescale_seconds: float = 1.0  # at least one worker stays
    restart_seconds: float = 25.0  # no worker stays: the job goes through a checkpoint


class Forecast(NamedTuple):
    """Expected end of a job and its 90 % interval, as times."""

    eta: float
    low: float
    high: float
