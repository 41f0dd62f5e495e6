"""What training processes and the controller say to one another, version 1.

A training process long-polls over HTTP: it posts `Reports` and gets `Orders`. Reports
are numbered by the sender and kept until they are acknowledged, so none is lost when
the controller restarts and none counts twice. Imported into users' scripts: it needs msgspec,
and nothing of the scheduler. The types of the fields are the bounds that are checked on arrival.

    POST {ONES_CONTROLLER}/worker/reports?wait=20
    Authorization: Bearer {ONES_TOKEN}

The answer comes at once when there are reports in the body or an order newer than the
worker has `seen`; else after so many seconds. 409: this worker has no place in its job any
more and exits. Reports of an older generation by a worker that still has its place are
acknowledged and dropped.
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
    Value,
    WorkerName,
)

PROTOCOL = 1


# from a training process


class Joined(Tagged, frozen=True, kw_only=True):
    """The script has reached `ones.join`, is warm, and says what it trains.

    It has not touched its GPU yet: it does so when it gets the `Switch` that names it.
    """

    dataset_size: Positive
    base_batch: Batch
    optimizer: Name
    parameter_bytes: Number
    max_local_batch: Batch | None = None


class Ready(Tagged, frozen=True):
    """This worker trains."""


class Steps(Tagged, frozen=True, kw_only=True):
    epoch: EpochNumber  # the one under way, from 1
    steps: Number
    samples: Number


class Epoch(Tagged, frozen=True, kw_only=True):
    """What one pass over the data brought. A loss that diverged is reported as a word."""

    epoch: EpochNumber  # from 1
    steps: Number
    samples: Number
    loss: Measure | NotFinite | None = None
    accuracy: Measure | NotFinite | None = None
    first_loss: Measure | NotFinite | None = None
    step_seconds: StepSeconds | NotFinite | None = None
    gradient_noise: Measure | NotFinite | None = None
    planned_epochs: Epochs | None = None  # that the loop will do


class Speed(Tagged, frozen=True, kw_only=True):
    """Mean step time in one configuration, without the first steps after a change."""

    gpus: Gpus
    nodes: Gpus
    batch: Batch
    micro_steps: Parts
    step_seconds: StepSeconds
    steps: Positive


class MemoryLimit(Tagged, frozen=True):
    max_local_batch: Batch


class Memory(Tagged, frozen=True):
    """Most that was in use so far, with micro-batches of so many samples."""

    peak_bytes: Number
    micro_batch: Number


class Switched(Tagged, frozen=True):
    """All workers of the generation train; the old ones stood still for so long.

    With an incarnation above 0 they re-formed by themselves after a loss: `members` says who
    is left, in the order of their ranks.
    """

    pause_seconds: PauseSeconds
    members: Annotated[tuple[WorkerName, ...], Meta(max_length=MOST_WORKERS)] = ()
    #: of the pause, in seconds
    parts: Annotated[Mapping[Name, PauseSeconds], Meta(max_length=64)] = field(default_factory=dict)
    step: Number = 0  # optimizer steps before it


class SwitchFailed(Tagged, frozen=True):
    """That plan did not come together here, and training goes on as before."""

    reason: Text
    plan: Number = 0


class StoreStarted(Tagged, frozen=True):
    """The job's rendezvous store is here (host:port:port): tell its workers on other nodes."""

    address: Name


class Hung(Tagged, frozen=True):
    """That worker of the job does not answer and must be killed where it is."""

    worker: WorkerName


class Leaving(Tagged, frozen=True):
    """This worker goes, as it was told or because the script is done."""

    done: bool = False  # the whole job is


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
    | Hung
    | Leaving
)


class Reports(Tagged, frozen=True, kw_only=True):
    """What one worker has to say since the last acknowledgement, of one generation."""

    job: Name
    worker: WorkerName  # its GPU, as node/index
    plan: Number
    incarnation: Number = 0
    first: Number  # number of the first report; the others follow on
    reports: Annotated[tuple[Report, ...], Meta(max_length=MOST_REPORTS)] = ()
    seen: Number = 0  # plan of the latest order that arrived here
    protocol: int = PROTOCOL


# from the controller


class Member(Value, frozen=True, kw_only=True):
    worker: WorkerName
    batch: Number
    micro_steps: Positive = 1


class Switch(Tagged, frozen=True, kw_only=True):
    """Become these members, in the order of their ranks, after one and the same step.

    Given to all that are and all that will be, when those who will be have `Joined`.
    """

    plan: Number
    members: Annotated[tuple[Member, ...], Meta(max_length=MOST_WORKERS)]
    batch: Number  # global
    base_batch: Number  # what the learning rate was tuned for


class Withdraw(Tagged, frozen=True):
    """The `Switch` of that plan will not come: let go of what was prepared."""

    plan: Number
    withdrawn: Number


class CheckpointAndLeave(Tagged, frozen=True):
    plan: Number


class End(Tagged, frozen=True):
    """The job is over. Converged or finished: the script's loop ends; else leave at once."""

    reason: str
    plan: Number = 0


Order = Switch | Withdraw | CheckpointAndLeave | End


class Orders(Tagged, frozen=True, kw_only=True):
    #: reports up to this number are safe; do not send them again
    #: reports up to this number are safe; do not send them again
    acknowledged: Annotated[int, Meta(ge=-1, le=2**54)]
    order: Order | None = None
    store: str = ""  # where the job's store is, if the controller was told
    protocol: int = PROTOCOL
