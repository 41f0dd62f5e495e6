"""What training processes and the controller say to one another, version 1.

A training process long-polls over HTTP: it posts `Reports` and gets `Orders`. Reports
are numbered by the sender and kept until they are acknowledged, so none is lost when
the controller restarts and none counts twice. Everything here is stdlib: it is
imported into users' scripts.
"""

from __future__ import annotations

from dataclasses import dataclass

PROTOCOL = 1


# from a training process


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The script has reached `ones.join` and says what it trains."""

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
class Switched:
    """All workers of the generation train; the old ones stood still for so long."""

    pause_seconds: float


@dataclass(frozen=True, slots=True)
class SwitchFailed:
    reason: str


@dataclass(frozen=True, slots=True)
class Leaving:
    """This worker goes, as it was told or because the script is done."""

    done: bool = False  # the whole job is


Report = Joined | Ready | Steps | Epoch | Speed | MemoryLimit | Switched | SwitchFailed | Leaving


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """What one worker has to say since the last acknowledgement."""

    job: str
    worker: str  # its GPU, as node/index
    plan: int
    incarnation: int = 0
    first: int  # number of the first report; the others follow on
    reports: tuple[Report, ...] = ()
    protocol: int = PROTOCOL


# from the controller


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    worker: str
    batch: int
    micro_steps: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Become these members after one and the same step."""

    plan: int
    members: tuple[Member, ...]
    batch: int  # global
    base_batch: int  # what the learning rate was tuned for


@dataclass(frozen=True, slots=True)
class CheckpointAndLeave:
    plan: int


@dataclass(frozen=True, slots=True)
class End:
    """The job is over: leave without a checkpoint."""

    reason: str


Order = Switch | CheckpointAndLeave | End


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    acknowledged: int  # reports up to this number are safe; do not send them again
    order: Order | None = None
    protocol: int = PROTOCOL
