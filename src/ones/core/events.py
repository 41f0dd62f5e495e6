"""What happened. Past tense, frozen, each with the time at which the engine learned of it.

Engines make them, the run log keeps them, `State` folds them. A report of a training
process carries its generation; one of an older generation is dropped and counted.
A new event needs a line in `Event`, a handler in `fold`, and nothing in the run log.
"""

from __future__ import annotations

from ones.core.cluster import Gpu, NodeId
from ones.core.job import Configuration, EndReason, Generation, Job, JobId
from ones.wire.bounds import (
    Finite,
    Gpus,
    Index,
    Number,
    Positive,
    Seconds,
    SomeSeconds,
    Tagged,
    Time,
)


class JobSubmitted(Tagged, frozen=True):
    """A user has asked for a job to be run."""

    at: Time
    job: Job


class JobDescribed(Tagged, frozen=True, kw_only=True):
    """The script has joined and says what it trains."""

    at: Time
    job: JobId
    generation: Generation
    dataset_size: Positive
    base_batch: Positive
    optimizer: str = ""
    parameter_bytes: Number = 0
    max_local_batch: Positive | None = None


class JobFoundFixed(Tagged, frozen=True):
    """Its script runs and has not joined: from now on it is a job that is not elastic."""

    at: Time
    job: JobId
    generation: Generation


class StepsDone(Tagged, frozen=True, kw_only=True):
    """Between two epochs. Counts from the start of the epoch: a resent report is harmless."""

    at: Time
    job: JobId
    generation: Generation
    epoch: Number  # the one under way, from 1
    steps: Number
    samples: Number


class EpochFinished(Tagged, frozen=True, kw_only=True):
    """One pass over the data is done, with what it brought.

    A measure that is not a finite number is missing, and its name is in `not_finite`: training
    may have diverged. (In logs of earlier versions it is itself nan or infinite.)
    """

    at: Time
    job: JobId
    generation: Generation
    epoch: Number  # from 1
    samples: Number
    steps: Number
    loss: float | None = None  # mean training loss of the epoch
    accuracy: float | None = None
    first_loss: float | None = None  # of the very first step; with the first epoch
    step_seconds: float | None = None
    gradient_noise: float | None = None
    planned_epochs: Positive | None = None  # that its loop will do, with this one
    not_finite: tuple[str, ...] = ()  # measures that were nan or infinite


class ThroughputMeasured(Tagged, frozen=True, kw_only=True):
    """How long a step took on average, in one configuration."""

    at: Time
    job: JobId
    generation: Generation
    configuration: Configuration
    step_seconds: SomeSeconds
    steps: Positive  # how many were averaged


class MemoryLimitLearned(Tagged, frozen=True, kw_only=True):
    """More samples than these do not fit one GPU at once."""

    at: Time
    job: JobId
    generation: Generation
    max_local_batch: Positive


class WorkerReady(Tagged, frozen=True):
    """A started worker has joined its job and trains from now on."""

    at: Time
    job: JobId
    generation: Generation
    gpu: Gpu


class WorkerLeft(Tagged, frozen=True):
    """A worker is gone as it was told to, or because its job ended: its GPU is free."""

    at: Time
    job: JobId
    generation: Generation
    gpu: Gpu


class WorkerLost(Tagged, frozen=True):
    """A worker died. Its GPU is free; if others live they re-form and report `Rescaled`."""

    at: Time
    job: JobId
    generation: Generation
    gpu: Gpu
    reason: str = ""


class Rescaled(Tagged, frozen=True):
    """All workers of a generation train. `pause_seconds` is what the old ones stood still.

    After a loss, `survivors` are those who go on: this may be known before the loss is, for a node
    is lost only when nothing can run there any more."""

    at: Time
    job: JobId
    generation: Generation
    pause_seconds: Seconds
    survivors: tuple[Gpu, ...] = ()


class RescaleFailed(Tagged, frozen=True):
    """The order did not come together: the job goes on as before, newcomers are leaving."""

    at: Time
    job: JobId
    generation: Generation
    reason: str = ""
    harmless: bool = False  # of a start: stopped from outside, which costs the job no try


class NodeUp(Tagged, frozen=True):
    """A node has come, or has come back, with so many GPUs."""

    at: Time
    node: NodeId
    gpus: Gpus
    groups: tuple[Index, ...] = ()  # see `Node`


class NodeDraining(Tagged, frozen=True):
    """A node is to be left: those who are there may stay, nobody new comes."""

    at: Time
    node: NodeId


class NodeDown(Tagged, frozen=True):
    """Fenced: nothing runs there any more, so no `WorkerLost` follows for its workers."""

    at: Time
    node: NodeId


class GpuSetAside(Tagged, frozen=True):
    """One GPU of a node is to be left: who is there may stay, nobody new comes."""

    at: Time
    gpu: Gpu
    reason: str = ""


class GpuReturned(Tagged, frozen=True):
    """A GPU that was set aside may be used again."""

    at: Time
    gpu: Gpu


class CancelRequested(Tagged, frozen=True):
    """A user wants a job to end."""

    at: Time
    job: JobId
    by: str = ""


class PriorityChanged(Tagged, frozen=True):
    """Higher goes first."""

    at: Time
    job: JobId
    priority: Finite


class OwnerLimitSet(Tagged, frozen=True):
    """No more than so many GPUs for one owner's jobs together; None lifts the limit."""

    at: Time
    owner: str
    max_gpus: Number | None


class JobEnded(Tagged, frozen=True):
    """Said before its workers leave, so that nobody takes their leaving for a loss."""

    at: Time
    job: JobId
    reason: EndReason
    message: str = ""
    generation: Generation | None = None  # of the workers that say so; None: the engine says so


class Woke(Tagged, frozen=True):
    """Nothing happened, but a policy had asked to be woken by now."""

    at: Time


class EntryQuarantined(Tagged, frozen=True, kw_only=True):
    """An entry of the run log made the state or the policy raise. It is skipped from now on, in
    the run and when the log is read again, and its job fails."""

    at: Time
    entry: Number  # its number in the run log; 0: the event was refused before it was logged
    kind: str  # its type
    reason: str
    job: JobId | None = None
    policy_only: bool = False  # the state keeps the entry; only the policy does not see it


class PolicyFailed(Tagged, frozen=True, kw_only=True):
    """A decision raised, or asked for an invalid schedule: the schedule stays as it is."""

    at: Time
    policy: str
    reason: str
    failures: Positive  # in a row
    retry_at: Time


class PolicyReplaced(Tagged, frozen=True, kw_only=True):
    """Another policy decides from now on."""

    at: Time
    policy: str
    reason: str


JobReport = (
    JobDescribed
    | JobFoundFixed
    | StepsDone
    | EpochFinished
    | ThroughputMeasured
    | MemoryLimitLearned
    | WorkerReady
    | Rescaled
    | RescaleFailed
)

Event = (
    JobSubmitted
    | JobReport
    | WorkerLeft
    | WorkerLost
    | NodeUp
    | NodeDraining
    | NodeDown
    | GpuSetAside
    | GpuReturned
    | CancelRequested
    | PriorityChanged
    | OwnerLimitSet
    | JobEnded
    | EntryQuarantined
    | PolicyFailed
    | PolicyReplaced
    | Woke
)

#: of the scheduler about itself: policies do not observe them
OWN_EVENTS: frozenset[type[Event]] = frozenset({EntryQuarantined, PolicyFailed, PolicyReplaced})

#: what can make room, or somebody who wants it: enough for policies that never re-scale
CAPACITY_EVENTS: frozenset[type[Event]] = frozenset(
    {
        JobSubmitted,
        JobEnded,
        CancelRequested,
        PriorityChanged,
        OwnerLimitSet,
        RescaleFailed,
        WorkerLost,
        NodeUp,
        NodeDraining,
        NodeDown,
        GpuSetAside,
        GpuReturned,
        Woke,
    }
)
#: also what a policy can learn from, and the moments at which a pinned job is free again
PROGRESS_EVENTS: frozenset[type[Event]] = CAPACITY_EVENTS | {
    JobDescribed,
    EpochFinished,
    MemoryLimitLearned,
    WorkerReady,
    Rescaled,
}
