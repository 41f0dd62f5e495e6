"""The messages between training processes and the controller: worker protocol, version 1.

A training process long-polls over HTTP: it posts `Reports` and gets `Orders`. The sender numbers
its reports and keeps them until they are acknowledged, so none is lost when the controller restarts
and none counts twice. Users' scripts import this module: it needs msgspec and nothing of the
scheduler. The types of the fields are bounds that are checked on arrival.

    POST {ONES_CONTROLLER}/worker/reports?wait=20
    Authorization: Bearer {ONES_TOKEN}

The answer comes at once if the body has reports, or if there is an order newer than `seen`;
otherwise after `wait` seconds. Status 409: the worker is no longer part of its job and must exit.
Reports of an older generation from a worker that is still part of its job are acknowledged and
dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, field

from ones.wire.bounds import (
    MOST_REPORTS,
    MOST_WORKERS,
    Batch,
    EpochNumber,
    Epochs,
    Gpus,
    Measure,
    Name,
    NotFinite,
    Number,
    Parts,
    PauseSeconds,
    Positive,
    StepSeconds,
    Tagged,
    Text,
    Url,
    Value,
    WorkerName,
)
from ones.wire.work import Work

PROTOCOL = 1


# from a training process


class Joined(Tagged, frozen=True, kw_only=True):
    """The script has called `ones.join`; describes what it trains.

    The worker has not used its GPU yet: it does so after the `Switch` that has it as a member.
    Sent again if `dataset_size` changes, as in a loop over steps: samples per epoch as reported.
    """

    dataset_size: Positive
    base_batch: Batch
    optimizer: Name
    parameter_bytes: Number
    max_local_batch: Batch | None = None


class Ready(Tagged, frozen=True):
    """This worker trains."""


class Steps(Tagged, frozen=True, kw_only=True):
    epoch: EpochNumber  # the current one, from 1
    steps: Number
    samples: Number
    gradient_noise: Measure | NotFinite | None = None
    planned_epochs: Epochs | None = None  # epochs of the script's loop, when they become known
    work: Work | None = None  # of a job that does not count in epochs


class Epoch(Tagged, frozen=True, kw_only=True):
    """Measures of one pass over the data, or of a twentieth of another loop (`work`).

    One that is not finite is sent as a string: "nan".
    """

    epoch: EpochNumber  # from 1
    steps: Number
    samples: Number
    loss: Measure | NotFinite | None = None
    accuracy: Measure | NotFinite | None = None
    first_loss: Measure | NotFinite | None = None
    step_seconds: StepSeconds | NotFinite | None = None
    gradient_noise: Measure | NotFinite | None = None
    planned_epochs: Epochs | None = None  # epochs of the script's loop
    work: Work | None = None  # as in `Steps`


class Speed(Tagged, frozen=True, kw_only=True):
    """Mean step time in one configuration. The first steps after a change are left out.

    `first_step_extra_seconds`: how much longer the first step with new workers took than a plain
    step; sent once after a change of the workers.
    """

    gpus: Gpus
    nodes: Gpus
    batch: Batch
    micro_steps: Parts
    step_seconds: StepSeconds
    steps: Positive
    first_step_extra_seconds: PauseSeconds | None = None


class MemoryLimit(Tagged, frozen=True):
    max_local_batch: Batch


class Memory(Tagged, frozen=True):
    """Maximum device memory in use with the micro-batch, in samples.

    `max_local_batch`: samples that fit, estimated from the maxima of two sizes, if memory gets low.
    """

    peak_bytes: Number
    micro_batch: Number
    max_local_batch: Batch | None = None


class Switched(Tagged, frozen=True):
    """All workers of the generation train; `pause_seconds` is the pause of the staying workers.

    With an incarnation above 0 the workers re-formed by themselves after a loss; `members` are the
    remaining workers in the order of their ranks.
    """

    pause_seconds: PauseSeconds
    members: Annotated[tuple[WorkerName, ...], Meta(max_length=MOST_WORKERS)] = ()
    #: parts of the pause, in seconds
    parts: Annotated[Mapping[Name, PauseSeconds], Meta(max_length=64)] = field(default_factory=dict)
    #: optimizer steps before the switch; -1: not known
    step: Annotated[int, Meta(ge=-1, le=2**54)] = -1


class SwitchFailed(Tagged, frozen=True):
    """The switch to a plan failed on this worker; training continues as before."""

    reason: Text
    plan: Number = 0


class StoreStarted(Tagged, frozen=True):
    """Address of the job's rendezvous store (host:port:port), for its workers on other nodes."""

    address: Name


class TrackerLink(Tagged, frozen=True):
    """Where a tracker (MLflow, W&B) shows the job's run, for people."""

    url: Url


class Hung(Tagged, frozen=True):
    """Another worker of the job does not answer; its launcher must kill it."""

    worker: WorkerName


class Leaving(Tagged, frozen=True):
    """This worker exits, as ordered or because the script has ended."""

    done: bool = False  # the whole job is done


Report = (
    Joined
    | Ready
    | Steps
    | Epoch
    | Speed
    | MemoryLimit
    | Memory
    | Switched
    | SwitchFailed
    | StoreStarted
    | TrackerLink
    | Hung
    | Leaving
)


class Reports(Tagged, frozen=True, kw_only=True):
    """The reports of one worker since the last acknowledgement, of one generation."""

    job: Name
    worker: WorkerName  # its GPU, as node/index
    plan: Number
    incarnation: Number = 0
    first: Number  # number of the first report; the others are numbered on from it
    reports: Annotated[tuple[Report, ...], Meta(max_length=MOST_REPORTS)] = ()
    seen: Number = 0  # plan of the latest order that the worker has
    protocol: int = PROTOCOL


# from the controller


class Member(Value, frozen=True, kw_only=True):
    worker: WorkerName
    batch: Number
    micro_steps: Positive = 1


class Switch(Tagged, frozen=True, kw_only=True):
    """Continue with these members, in the order of their ranks, after a common step.

    Sent to all present and joining workers once every joining worker has reported `Joined`.
    """

    plan: Number
    members: Annotated[tuple[Member, ...], Meta(max_length=MOST_WORKERS)]
    batch: Number  # global
    base_batch: Number  # the batch that the learning rate was tuned for


class Withdraw(Tagged, frozen=True):
    """The `Switch` of a plan will not come: release what was prepared for it."""

    plan: Number
    withdrawn: Number


class CheckpointAndLeave(Tagged, frozen=True):
    plan: Number


class End(Tagged, frozen=True):
    """The job is over. Converged or finished: the script's loop ends; otherwise exit at once."""

    reason: str
    plan: Number = 0


Order = Switch | Withdraw | CheckpointAndLeave | End


class Orders(Tagged, frozen=True, kw_only=True):
    #: reports up to this number are on disk; do not send them again
    acknowledged: Annotated[int, Meta(ge=-1, le=2**54)]
    order: Order | None = None
    store: str = ""  # address of the job's rendezvous store, if known
    protocol: int = PROTOCOL
