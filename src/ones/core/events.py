"""The events of the scheduler: frozen values with the time at which the engine learned of them.

Engines make events, the run log keeps them, `transitions` applies them to the state. A report of a
training process carries its generation; a report of an older generation is dropped and counted.
A new event needs a line in `Event` and a handler in `transitions`, and nothing in the run log.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field

from ones.core.cluster import Gpu, NodeId
from ones.core.job import Configuration, EndReason, Generation, Job, JobId
from ones.wire.bounds import (
    Amount,
    Finite,
    Gpus,
    Index,
    Number,
    Positive,
    Seconds,
    SomeSeconds,
    Tagged,
    Time,
    Url,
)
from ones.wire.work import Work


class JobSubmitted(Tagged, frozen=True):
    """A user submitted a job."""

    at: Time
    job: Job


class JobDescribed(Tagged, frozen=True, kw_only=True):
    """The script joined and described what it trains; sent again when a value has changed.

    `max_local_batch` counts here until it changes: a limit that was learned otherwise
    (`MemoryLimitLearned`) stays if the script repeats itself.
    """

    at: Time
    job: JobId
    generation: Generation
    dataset_size: Positive
    base_batch: Positive
    optimizer: str = ""
    parameter_bytes: Number = 0
    max_local_batch: Positive | None = None
    min_batch: Positive | None = None  # bounds of the global batch; None: as before
    max_batch: Positive | None = None


class JobFoundFixed(Tagged, frozen=True):
    """The job's script runs and has not joined in time: the job counts as not elastic."""

    at: Time
    job: JobId
    generation: Generation


class StepsDone(Tagged, frozen=True, kw_only=True):
    """Progress within an epoch. Counts are from the epoch's start: a resent report is harmless."""

    at: Time
    job: JobId
    generation: Generation
    epoch: Number  # the current one, from 1
    steps: Number
    samples: Number
    gradient_noise: float | None = None  # noise scale in samples, where it was measured anew
    planned_epochs: Positive | None = None  # epochs of the script's loop, when they become known
    work: Work | None = None  # of a job that does not count in epochs
    #: progress of the job since its first step, in samples of the base batch; None: not known
    effective_samples: Amount | None = None


class EpochFinished(Tagged, frozen=True, kw_only=True):
    """One pass over the data is done; carries its measures.

    A measure that is not a finite number is left out, and its name is in `not_finite`: training
    may have diverged. (In logs of earlier versions the measure itself is nan or infinite.)
    """

    at: Time
    job: JobId
    generation: Generation
    epoch: Number  # from 1
    samples: Number  # 0: an evaluation before training, which counts as an epoch
    steps: Number
    loss: float | None = None  # mean training loss of the epoch
    accuracy: float | None = None
    first_loss: float | None = None  # of the first step of the job; sent with the first epoch
    step_seconds: float | None = None
    gradient_noise: float | None = None
    planned_epochs: Positive | None = None  # epochs of the script's loop, this one included
    effective_samples: Amount | None = None  # as in `StepsDone`: since the job's first step
    not_finite: tuple[str, ...] = ()  # measures that were nan or infinite
    work: Work | None = None  # as in `StepsDone`


class TrainingRestarted(Tagged, frozen=True):
    """The job trains from the beginning again: no checkpoint was found after all workers died.

    Its batch, progress and forecast begin anew. `epochs`: those that were done and count no more.
    """

    at: Time
    job: JobId
    generation: Generation
    epochs: Number


class TrackerLinked(Tagged, frozen=True):
    """Where a tracker, such as MLflow, shows the job's run."""

    at: Time
    job: JobId
    generation: Generation
    url: Url


class ThroughputMeasured(Tagged, frozen=True, kw_only=True):
    """Mean time of a step in one configuration.

    `first_step_extra_seconds`: how much longer the first step with new workers took than a plain
    step. It counts as part of the cost of that change, with the pause.
    """

    at: Time
    job: JobId
    generation: Generation
    configuration: Configuration
    step_seconds: SomeSeconds
    steps: Positive  # number of steps in the mean
    first_step_extra_seconds: Seconds | None = None  # once after a change of the workers


class MemoryLimitLearned(Tagged, frozen=True, kw_only=True):
    """The maximum number of samples that fit into the memory of one GPU is known, or another."""

    at: Time
    job: JobId
    generation: Generation
    max_local_batch: Positive


class WorkerReady(Tagged, frozen=True):
    """A started worker joined its job and trains."""

    at: Time
    job: JobId
    generation: Generation
    gpu: Gpu
    batch: Positive | None = None  # of a start: global batch, if another one than ordered


class WorkerLeft(Tagged, frozen=True):
    """A worker exited as ordered, or because its job ended. Its GPU is free."""

    at: Time
    job: JobId
    generation: Generation
    gpu: Gpu


class WorkerLost(Tagged, frozen=True):
    """A worker died. Its GPU is free; remaining workers re-form and report `Rescaled`."""

    at: Time
    job: JobId
    generation: Generation
    gpu: Gpu
    reason: str = ""


class Rescaled(Tagged, frozen=True):
    """All workers of a generation train. `pause_seconds` is the pause of the staying workers.

    After a loss, `survivors` are the GPUs of the workers that continue. This event may come before
    that of the loss: a node counts as lost only when nothing can run there any more.
    """

    at: Time
    job: JobId
    generation: Generation
    pause_seconds: Seconds
    survivors: tuple[Gpu, ...] = ()
    batch: Positive | None = None  # global batch that was applied, if another one than ordered


class RescaleFailed(Tagged, frozen=True):
    """A rescale or a start failed: the job continues as before, joining workers leave."""

    at: Time
    job: JobId
    generation: Generation
    reason: str = ""
    harmless: bool = False  # a start that was stopped from outside: does not count as a failed try


class NodeUp(Tagged, frozen=True):
    """A node joined or returned, with this number of GPUs."""

    at: Time
    node: NodeId
    gpus: Gpus
    groups: tuple[Index, ...] = ()  # see `Node`
    rack: str = ""  # see `Node`
    slots: Positive = 1  # see `Node`; `gpus` counts slots


class NodeDraining(Tagged, frozen=True):
    """A node drains: present workers may stay, no new worker is placed on it."""

    at: Time
    node: NodeId


class NodeDown(Tagged, frozen=True):
    """A node is fenced: nothing runs there any more. No `WorkerLost` follows for its workers."""

    at: Time
    node: NodeId


class GpuSetAside(Tagged, frozen=True):
    """A GPU was cordoned: a present worker may stay, no new worker is placed on it."""

    at: Time
    gpu: Gpu
    reason: str = ""


class GpuReturned(Tagged, frozen=True):
    """A cordoned GPU may be used again."""

    at: Time
    gpu: Gpu


class CancelRequested(Tagged, frozen=True):
    """A user cancelled a job."""

    at: Time
    job: JobId
    by: str = ""


class PriorityChanged(Tagged, frozen=True):
    """A job's priority changed; higher goes first. Newer logs have `JobChanged`."""

    at: Time
    job: JobId
    priority: Finite


class JobChanged(Tagged, frozen=True, kw_only=True):
    """A user changed a submitted job. None: that value stays.

    Policies also observe it, without a log entry, when past use has changed its priority.
    """

    at: Time
    job: JobId
    by: str = ""
    priority: Finite | None = None
    min_gpus: Gpus | None = None
    max_gpus: Number | None = None  # 0: no maximum
    other: tuple[str, ...] = ()  # changes that the scheduler does not need, as text


class JobHeld(Tagged, frozen=True):
    """A user put a job on hold: it may not start, and an elastic job that runs is stopped."""

    at: Time
    job: JobId
    by: str = ""


class JobReleased(Tagged, frozen=True):
    """A job on hold may start again.

    Policies also observe it, without a log entry, for a job when its dependencies are met or its
    turn in its array has come.
    """

    at: Time
    job: JobId
    by: str = ""


class JobWarned(Tagged, frozen=True):
    """The engine warns the owner of a job. Nothing changes, and policies do not observe it."""

    at: Time
    job: JobId
    about: str  # idle: of its GPUs; slow: of its workers
    text: str


class OwnerLimitSet(Tagged, frozen=True):
    """An owner's limit changed: maximum GPUs of all its jobs together; None: no limit."""

    at: Time
    owner: str
    max_gpus: Number | None


class FairShareSet(Tagged, frozen=True):
    """Past use of GPUs counts in the order of jobs from now on, with this half-life (seconds).

    `used`: GPU-seconds of each owner up to now, with what has decayed left out. A half-life of 0
    ends it.
    """

    at: Time
    half_life: Seconds
    used: Mapping[str, Amount] = field(default_factory=dict)


class JobEnded(Tagged, frozen=True):
    """A job ended. Comes before the job's workers leave, so their exit is not taken for a loss."""

    at: Time
    job: JobId
    reason: EndReason
    message: str = ""
    generation: Generation | None = None  # of the reporting workers; None: reported by the engine


class Woke(Tagged, frozen=True):
    """The time at which the policy asked to be called has come."""

    at: Time


class EntryQuarantined(Tagged, frozen=True, kw_only=True):
    """An entry of the run log made the state or the policy raise.

    The entry is skipped from now on, in the run and when the log is read again. Its job fails.
    """

    at: Time
    entry: Number  # number in the run log; 0: the event was refused before it was logged
    kind: str  # type of the entry
    reason: str
    job: JobId | None = None
    policy_only: bool = False  # the state keeps the entry; only the policy does not see it


class PolicyFailed(Tagged, frozen=True, kw_only=True):
    """A policy's decision raised or was invalid: the schedule stays as it is."""

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
    | TrainingRestarted
    | TrackerLinked
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
    | JobChanged
    | JobHeld
    | JobReleased
    | JobWarned
    | OwnerLimitSet
    | FairShareSet
    | JobEnded
    | EntryQuarantined
    | PolicyFailed
    | PolicyReplaced
    | Woke
)

#: events of the scheduler about itself
OWN_EVENTS: frozenset[type[Event]] = frozenset({EntryQuarantined, PolicyFailed, PolicyReplaced})
#: events that policies do not observe
UNOBSERVED_EVENTS: frozenset[type[Event]] = OWN_EVENTS | {JobWarned}

#: events that free GPUs or bring demand: enough for policies that never rescale a job
CAPACITY_EVENTS: frozenset[type[Event]] = frozenset(
    {
        JobSubmitted,
        JobEnded,
        CancelRequested,
        PriorityChanged,
        JobChanged,
        JobHeld,
        JobReleased,
        OwnerLimitSet,
        FairShareSet,
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
#: also events that a policy can learn from, and those after which a job is no longer pinned
PROGRESS_EVENTS: frozenset[type[Event]] = CAPACITY_EVENTS | {
    JobDescribed,
    EpochFinished,
    TrainingRestarted,
    MemoryLimitLearned,
    WorkerReady,
    Rescaled,
}
