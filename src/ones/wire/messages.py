"""What training processes and the controller say to one another, version 1.

A training process long-polls over HTTP: it posts `Reports` and gets `Orders`. Reports
are numbered by the sender and kept until they are acknowledged, so none is lost when
the controller restarts and none counts twice. Everything here is stdlib: it is
imported into users' scripts.

    POST {ONES_CONTROLLER}/worker/reports?wait=20
    Authorization: Bearer {ONES_TOKEN}

The answer comes at once when there are reports in the body or an order newer than the
worker has `seen`; else after so many seconds. 409: this worker has no place in its job any
more and exits. Reports of an older generation by a worker that still has its place are
acknowledged and dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PROTOCOL = 1


# from a training process


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The script has reached `ones.join`, is warm, and says what it trains.

    It has not touched its GPU yet: it does so when it gets the `Switch` that names it.
    """

    dataset_size: int
    base_batch: int
    optimizer: str
    parameter_bytes: int
    max_local_batch: int | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """This worker trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    epoch: int
    steps: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    epoch: int
    steps: int
    samples: int
    loss: float | None = None
    accuracy: float | None = None
    first_loss: float | None = None
    step_seconds: float | None = None
    gradient_noise: float | None = None
    planned_epochs: int | None = None  # that the loop will do


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Mean step time in one configuration, without the first steps after a change."""

    gpus: int
    nodes: int
    batch: int
    micro_steps: int
    step_seconds: float
    steps: int


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    max_local_batch: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Most that was in use so far, with micro-batches of so many samples."""

    peak_bytes: int
    micro_batch: int


@dataclass(frozen=True, slots=True)
class Switched:
    """All workers of the generation train; the old ones stood still for so long.

    With an incarnation above 0 they re-formed by themselves after a loss: `members` says who
    is left, in the order of their ranks.
    """

    pause_seconds: float
    members: tuple[str, ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict)  # of the pause, in seconds
    step: int = 0  # optimizer steps before it


@dataclass(frozen=True, slots=True)
class SwitchFailed:
    """That plan did not come together here, and training goes on as before."""

    reason: str
    plan: int = 0


@dataclass(frozen=True, slots=True)
class StoreStarted:
    """The job's rendezvous store is here (host:port:port): tell its workers on other nodes."""

    address: str


@dataclass(frozen=True, slots=True)
class Hung:
    """That worker of the job does not answer and must be killed where it is."""

    worker: str


@dataclass(frozen=True, slots=True)
class Leaving:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """What one worker has to say since the last acknowledgement, of one generation."""

    job: str
    worker: str  # its GPU, as node/index
    plan: int
    incarnation: int = 0
    first: int  # number of the first report; the others follow on
    reports: tuple[Report, ...] = ()
    seen: int = 0  # plan of the latest order that arrived here
    protocol: int = PROTOCOL


# from the controller


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    worker: str
    batch: int
    micro_steps: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Become these members, in the order of their ranks, after one and the same step.

    Given to all that are and all that will be, when those who will be have `Joined`.
    """

    plan: int
    members: tuple[Member, ...]
    batch: int  # global
    base_batch: int  # what the learning rate was tuned for


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The `Switch` of that plan will not come: let go of what was prepared."""

    plan: int
    withdrawn: int


@dataclass(frozen=True, slots=True)
class CheckpointAndLeave:
    plan: int


@dataclass(frozen=True, slots=True)
class End:
    """The job is over. Converged or finished: the script's loop ends; else leave at once."""

    reason: str
    plan: int = 0


Order = Switch | Withdraw | CheckpointAndLeave | End


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    acknowledged: int  # reports up to this number are safe; do not send them again
    order: Order | None = None
    store: str = ""  # where the job's store is, if the controller was told
    protocol: int = PROTOCOL
