"""What happened. Past tense, frozen, each with the time at which the engine learned of it.

Engines make them, the run log keeps them, `State` folds them. A report of a training
process carries its generation; one of an older generation is dropped and counted.
A new event needs a line in `Event`, a handler in `fold`, and nothing in the run log.
"""

from __future__ import annotations

from dataclasses import dataclass

from ones.core.cluster import Gpu, NodeId
from ones.core.job import Configuration, EndReason, Generation, Job, JobId


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A user has asked for a job to be run."""

    at: float
    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDescribed:
    """The script has joined and says what it trains."""

    at: float
    job: JobId
    generation: Generation
    dataset_size: int
    base_batch: int
    optimizer: str = ""
    parameter_bytes: int = 0
    max_local_batch: int | None = None


@dataclass(frozen=True, slots=True)
class JobFoundFixed:
    """Its script runs and has not joined: from now on it is a job that is not elastic."""

    at: float
    job: JobId
    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsDone:
    """Between two epochs. Counts from the start of the epoch: a resent report is harmless."""

    at: float
    job: JobId
    generation: Generation
    epoch: int  # the one under way, from 1
    steps: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFinished:
    """One pass over the data is done, with what it brought."""

    at: float
    job: JobId
    generation: Generation
    epoch: int  # from 1
    samples: int
    steps: int
    loss: float | None = None  # mean training loss of the epoch
    accuracy: float | None = None
    first_loss: float | None = None  # of the very first step; with the first epoch
    step_seconds: float | None = None
    gradient_noise: float | None = None
    planned_epochs: int | None = None  # that its loop will do, with this one


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputMeasured:
    """How long a step took on average, in one configuration."""

    at: float
    job: JobId
    generation: Generation
    configuration: Configuration
    step_seconds: float
    steps: int  # how many were averaged


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimitLearned:
    """More samples than these do not fit one GPU at once."""

    at: float
    job: JobId
    generation: Generation
    max_local_batch: int


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A started worker has joined its job and trains from now on."""

    at: float
    job: JobId
    generation: Generation
    gpu: Gpu


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    """A worker is gone as it was told to, or because its job ended: its GPU is free."""

    at: float
    job: JobId
    generation: Generation
    gpu: Gpu


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker died. Its GPU is free; if others live they re-form and report `Rescaled`."""

    at: float
    job: JobId
    generation: Generation
    gpu: Gpu
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rescaled:
    """All workers of a generation train. `pause_seconds` is what the old ones stood still.

    After a loss, `survivors` are those who go on: this may be known before the loss is, for a node
    is lost only when nothing can run there any more."""

    at: float
    job: JobId
    generation: Generation
    pause_seconds: float
    survivors: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True)
class RescaleFailed:
    """The order did not come together: the job goes on as before, newcomers are leaving."""

    at: float
    job: JobId
    generation: Generation
    reason: str = ""
    harmless: bool = False  # of a start: stopped from outside, which costs the job no try


@dataclass(frozen=True, slots=True)
class NodeUp:
    """A node has come, or has come back, with so many GPUs."""

    at: float
    node: NodeId
    gpus: int
    groups: tuple[int, ...] = ()  # see `Node`


@dataclass(frozen=True, slots=True)
class NodeDraining:
    """A node is to be left: those who are there may stay, nobody new comes."""

    at: float
    node: NodeId


@dataclass(frozen=True, slots=True)
class NodeDown:
    """Fenced: nothing runs there any more, so no `WorkerLost` follows for its workers."""

    at: float
    node: NodeId


@dataclass(frozen=True, slots=True)
class GpuSetAside:
    """One GPU of a node is to be left: who is there may stay, nobody new comes."""

    at: float
    gpu: Gpu
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GpuReturned:
    """A GPU that was set aside may be used again."""

    at: float
    gpu: Gpu


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """A user wants a job to end."""

    at: float
    job: JobId
    by: str = ""


@dataclass(frozen=True, slots=True)
class PriorityChanged:
    """Higher goes first."""

    at: float
    job: JobId
    priority: float


@dataclass(frozen=True, slots=True)
class OwnerLimitSet:
    """No more than so many GPUs for one owner's jobs together; None lifts the limit."""

    at: float
    owner: str
    max_gpus: int | None


@dataclass(frozen=True, slots=True)
class JobEnded:
    """Said before its workers leave, so that nobody takes their leaving for a loss."""

    at: float
    job: JobId
    reason: EndReason
    message: str = ""
    generation: Generation | None = None  # of the workers that say so; None: the engine says so


@dataclass(frozen=True, slots=True)
class Woke:
    """Nothing happened, but a policy had asked to be woken by now."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryQuarantined:
    """An entry of the run log made the state or the policy raise. It is skipped from now on, in
    the run and when the log is read again, and its job fails."""

    at: float
    entry: int  # its number in the run log; 0: the event was refused before it was logged
    kind: str  # its type
    reason: str
    job: JobId | None = None
    policy_only: bool = False  # the state keeps the entry; only the policy does not see it


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFailed:
    """A decision raised, or asked for an invalid schedule: the schedule stays as it is."""

    at: float
    policy: str
    reason: str
    failures: int  # in a row
    retry_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReplaced:
    """Another policy decides from now on."""

    at: float
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
