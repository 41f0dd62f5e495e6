"""The record of an unfinished job, and the outcome of an ended one.

A job has up to three allocations: `goal` is what the schedule says, `in_flight` what was ordered
last and not yet answered, `held` what trains. The job is settled when they agree; until then only a
cancellation or a loss of workers may change its goal. All fields are plain values: a snapshot holds
the record itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import field

from ones.core.cluster import Gpu
from ones.core.job import (
    Configuration,
    Dependency,
    Description,
    EndReason,
    Forecast,
    Generation,
    Job,
    JobId,
    StepTime,
)
from ones.core.lifecycle import OrderKind, Phase
from ones.core.schedule import Allocation
from ones.stopping import Track
from ones.wire.bounds import Tagged, Value, shared
from ones.wire.work import Unit, Work


class InFlight(Value, frozen=True):
    """An order that the engine has and has not answered."""

    kind: OrderKind
    plan: int
    allocation: Allocation | None = None

    def needs(self, gpus: Iterable[Gpu]) -> bool:
        """Whether the order cannot be completed without a worker on one of these GPUs."""
        return self.allocation is not None and not set(self.allocation.gpus).isdisjoint(gpus)


class Ending(Value, frozen=True):
    """A decided end of a job that the engine has not reported yet."""

    reason: EndReason
    message: str
    ordered: bool = False  # the engine has the `Finish`


class JobFigures(msgspec.Struct, kw_only=True):
    """Times, counters and measurements that a job's record, outcome and card all have.

    A new one is added here only.
    """

    started_at: float | None = None  # None: never held a GPU
    queue_seconds: float = 0.0
    run_seconds: float = 0.0
    gpu_seconds: float = 0.0
    epochs: int = 0
    samples: int = 0  # of finished epochs
    work: Work | None = None  # of a job that does not count in epochs
    loss: float | None = None  # of the last epoch
    accuracy: float | None = None
    diverged_epoch: int = 0  # first epoch since which the loss is not a finite number; 0: none
    step_seconds: float | None = None
    rescales: int = 0
    pause_seconds: float = 0.0
    preemptions: int = 0
    losses: int = 0  # workers lost
    failures: int = 0  # tries that failed
    tracker: str = ""  # address at which a tracker shows the job's run


class JobRecord(JobFigures, omit_defaults=True, forbid_unknown_fields=True):
    job: Job
    number: int  # order of submission
    since: float  # times are booked up to here
    priority: float  # that users set
    penalty: float = 0.0  # what past use of GPUs takes from it, see `fair_share`
    description: Description | None = None

    phase: Phase = Phase.WAITING  # changed by `State.advance` only
    goal: Allocation | None = None
    held: Allocation | None = None
    in_flight: InFlight | None = None
    reforming: bool = False  # some workers died, the others re-form
    formed: tuple[Gpu, ...] = ()  # GPUs of the workers that continued after the last loss
    found_fixed: bool = False  # the script did not join in time; `job.elastic` is False then
    #: an announced allocation cannot happen any more; a `Withdraw` follows ("withdrawn" if stored)
    withdraw_due: bool = field(default=False, name="withdrawn")
    ending: Ending | None = None
    occupied: set[Gpu] = field(default_factory=set)  # GPUs that the job's processes may be on
    ready: set[Gpu] = field(default_factory=set)  # workers of a start that have joined
    generation: Generation = Generation(0)  # of the training workers; older reports are stale

    # reported values beside the figures
    steps: int = 0  # of finished epochs
    epoch_steps: int = 0  # of the current epoch
    epoch_samples: int = 0
    first_loss: float | None = None
    gradient_noise: float | None = None
    effective_samples: float | None = None  # None: the last report did not say
    max_local_batch: int | None = None
    proven_part: int = 0  # samples that one GPU has had in memory without failing
    profile: Mapping[Configuration, StepTime] = field(default_factory=dict)
    track: Track = Track()

    on_hold: bool = False
    held_by: str = ""  # the user that put it on hold
    awaits: tuple[Dependency, ...] = ()  # those of `job.after` that are not met yet
    in_line: bool = False  # too many tasks of its array may start before it

    moves: int = 0  # rescales to other GPUs, not to another batch alone
    moved_seconds: float = 0.0  # pauses for them, and what their first steps took longer
    note: str = ""
    forecast: Forecast | None = None

    @property
    def id(self) -> JobId:
        return self.job.id

    @property
    def key(self) -> tuple[float, int]:
        """The job's sort key in the queue."""
        return (-self.effective_priority, self.number)

    @property
    def effective_priority(self) -> float:
        """The priority that policies see."""
        return self.priority - self.penalty

    @property
    def settled(self) -> bool:
        """The job has what the schedule says: a policy may change its allocation."""
        return self.phase is Phase.RUNNING or (self.phase is Phase.WAITING and self.goal is None)

    @property
    def blocked(self) -> bool:
        """The job may not have GPUs: no policy may start it."""
        return self.on_hold or self.in_line or bool(self.awaits)

    def allowed(self, allocation: Allocation) -> Allocation | None:
        """The part of an allocation that the job may have; None: it must wait."""
        least, most = self.job.min_gpus, self.job.max_gpus
        if self.blocked or allocation.n_gpus < least:
            return None
        if most is None or allocation.n_gpus <= most:
            return allocation
        kept = allocation.without(allocation.gpus[most:])
        if kept is not None and 0 < kept.batch < (self.job.min_batch or 0):
            return allocation.survivors(frozenset(kept.gpus), self.max_local_batch)
        return kept

    def settle_account(self, now: float) -> None:
        """Book the time since the last booking: execution with at least one GPU, else queueing."""
        elapsed = now - self.since
        if self.occupied:
            self.run_seconds += elapsed
            self.gpu_seconds += elapsed * len(self.occupied)
        else:
            self.queue_seconds += elapsed
        self.since = now

    def occupy(self, gpu: Gpu, now: float) -> None:
        self.settle_account(now)
        self.occupied.add(gpu)
        if self.started_at is None:
            self.started_at = now

    def vacate(self, gpu: Gpu, now: float) -> None:
        self.settle_account(now)
        self.occupied.discard(gpu)

    def work_done(self) -> dict[Unit, float]:
        """What the job has done, in all units that are known."""
        done: dict[Unit, float] = {Unit.SAMPLES: self.samples + self.epoch_samples}
        if self.description is not None:
            done[Unit.STEPS] = done[Unit.SAMPLES] / self.description.base_batch
        return done | ({self.work.unit: self.work.done} if self.work is not None else {})

    def local_limit(self) -> int | None:
        """Maximum number of samples on one GPU at once; None before the script has joined.

        Until the memory limit is known: twice the largest part that fitted, or the base batch.
        """
        if self.max_local_batch is not None:
            return self.max_local_batch
        if self.description is None:
            return None
        return max(2 * self.proven_part, self.description.base_batch)


def phase_of(record: JobRecord, goal: Allocation | None) -> Phase:
    """The phase that the other fields imply, for records of a snapshot."""
    if record.ending is not None:
        return Phase.ENDING
    if record.in_flight is not None:
        return {
            OrderKind.START: Phase.STARTING,
            OrderKind.RESCALE: Phase.RESCALING,
            OrderKind.STOP: Phase.STOPPING,
        }[record.in_flight.kind]
    if record.held is None:
        return Phase.WAITING
    return Phase.RUNNING if record.held == goal and not record.reforming else Phase.RESCALING


class Outcome(Tagged, JobFigures, frozen=True, kw_only=True):  # type: ignore[misc]  # msgspec can
    """The result and the figures of a job that has ended."""

    id: JobId
    kind: str
    owner: str
    submitted_at: float
    ended_at: float
    reason: EndReason
    message: str

    @property
    def completion_seconds(self) -> float:
        return self.ended_at - self.submitted_at


def outcome_of(record: JobRecord, at: float, reason: EndReason, message: str) -> Outcome:
    record.settle_account(at)
    return Outcome(
        kind=record.job.kind,
        owner=record.job.owner,
        submitted_at=record.job.submitted_at,
        ended_at=at,
        reason=reason,
        message=message,
        id=record.id,
        **shared(record, JobFigures),
    )
