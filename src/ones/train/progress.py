"""Training progress of a job: the state of a replica besides model and optimizer."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from msgspec import structs

from ones.stopping import Track
from ones.wire.work import Unit, Work

PARTS = 20  # of a loop over steps, samples or tokens


@dataclass(slots=True)
class EpochTotals:
    """Sums over the steps of one epoch."""

    steps: int = 0
    samples: int = 0
    loss: float = 0.0  # sum of the steps' mean losses, each times its weight
    weight: float = 0.0  # samples, or valid targets where the script counts them
    accuracy: float | None = None  # reported by the script at the end

    @property
    def mean_loss(self) -> float | None:
        return self.loss / self.weight if self.weight else None


@dataclass(slots=True)
class TrainingProgress:
    seed: int = 0
    epoch: int = 0  # the current one, from 0
    offset: int = 0  # samples of the epoch that were trained on
    step: int = 0  # optimizer steps since the start of the job
    sums: EpochTotals = field(default_factory=EpochTotals)
    last: EpochTotals = field(default_factory=EpochTotals)  # of the previous epoch
    first_loss: float | None = None  # of the first step of the job
    samples: int = 0  # since the start of the job
    base_steps: int = 0  # steps that the script alone, at its own batch size, would have made
    schedule_steps: int = 0  # base steps that a schedule per step has made
    schedule_epochs: int = 0  # epochs that a schedule per epoch has made
    unit: str = Unit.EPOCHS.value  # of the script's loop; base steps if by steps
    total: int | None = None  # of a loop over steps, samples or tokens
    tokens: float = 0.0  # valid targets since the start of the job, where the script counts them
    part: int = 0  # parts of that loop that were reported, as epochs
    seconds: float = 0.0  # of training, on the clock of the main worker
    weighted: bool = False  # the script counts valid targets
    limit: int | None = None  # samples that fit one worker, where one ran out of memory
    epochs: int | None = None  # as the script asked for
    #: of a stream, in this epoch: samples of each shard that were trained on, and the lengths of
    #: the shards, as far as they are known (else -1)
    positions: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    track: Track = field(default_factory=Track)

    @property
    def planned(self) -> int | None:
        """Epochs as they are reported: parts of the total, if the loop counts something else."""
        return self.epochs if self.total is None else min(PARTS, self.total)

    @property
    def reported(self) -> int:
        """Epochs that are complete, as they are reported."""
        return self.epoch if self.total is None else self.part

    @property
    def done(self) -> int:
        """What the script's loop has done, in its unit."""
        done = {
            Unit.EPOCHS: self.epoch,
            Unit.STEPS: self.base_steps,
            Unit.SAMPLES: self.samples,
            Unit.TOKENS: int(self.tokens),
        }
        return done[Unit(self.unit)]

    @property
    def has_all(self) -> bool:
        """Whether a loop over steps, samples or tokens is at its end."""
        return self.total is not None and self.done >= self.total

    @property
    def work(self) -> Work | None:
        """As it is reported; None in a loop over epochs."""
        if self.total is None:
            return None
        return Work(Unit(self.unit), self.done, self.total)

    def end_epoch(self) -> None:
        if self.total is None:
            self._end_sums()
        self.epoch, self.offset = self.epoch + 1, 0
        self.positions, self.lengths = [], []

    def end_part(self) -> bool:
        """Whether a part of a loop over steps, samples or tokens has ended; call it after each
        step."""
        if self.total is None or self.planned is None:
            return False
        part = min(self.done, self.total) * self.planned // self.total
        if part == self.part:
            return False
        self.part = part
        self._end_sums()
        return True

    def _end_sums(self) -> None:
        self.last, self.sums = self.sums, EpochTotals()

    def state(self) -> dict[str, Any]:
        return {**asdict(self), "track": structs.asdict(self.track)}

    def load(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self.sums, self.last = EpochTotals(**state["sums"]), EpochTotals(**state["last"])
        self.track = Track(**state["track"])
