"""Training progress of a job: the state of a replica besides model and optimizer."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from msgspec import structs

from ones.stopping import Track

PARTS = 20  # of a loop over steps


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
    total_steps: int | None = None  # base steps of a loop over steps
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
        """Epochs as they are reported: parts of the total in a loop over steps."""
        return self.epochs if self.total_steps is None else min(PARTS, self.total_steps)

    @property
    def reported(self) -> int:
        """Epochs that are complete, as they are reported."""
        return self.epoch if self.total_steps is None else self.part

    def end_epoch(self) -> None:
        if self.total_steps is None:
            self._end_sums()
        self.epoch, self.offset = self.epoch + 1, 0
        self.positions, self.lengths = [], []

    def end_part(self) -> bool:
        """Whether a part of a loop over steps has ended; call it after each step."""
        if self.total_steps is None or self.planned is None:
            return False
        part = self.base_steps * self.planned // self.total_steps
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
