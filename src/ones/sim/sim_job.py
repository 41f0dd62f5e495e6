"""One simulated job: how far it is, and how fast it goes as it is.

Between two changes it makes equal steps. `settle` books the steps up to a moment;
`begin` starts a stretch in another configuration. Time comes in from outside.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ones.core.cluster import Gpu
from ones.core.job import Configuration, Generation, Job
from ones.core.lifecycle import OrderKind
from ones.core.schedule import Allocation
from ones.sim.physics import Death, JobPhysics, Setback
from ones.workload.trace import RecordedTraining, Training

_SLACK = 1e-9  # of a step: sums of floats are not exact


class Pending(NamedTuple):
    """An order that is being carried out."""

    kind: OrderKind
    generation: Generation


class SimJob:
    """Mutable, owned by the engine."""

    __slots__ = (
        "allocation", "batch", "configuration", "described", "epoch_samples", "epoch_steps",
        "epochs", "finishing", "generation", "held", "job", "low_batch", "measured", "number",
        "order", "pending", "physics", "prepared", "present", "progress", "ran_before", "run",
        "saved", "sharing", "since", "spike", "spiked_at", "step_seconds", "stretch_steps",
        "training", "worth",
    )  # fmt: skip

    def __init__(
        self, number: int, job: Job, training: Training | RecordedTraining, physics: JobPhysics
    ) -> None:
        self.number, self.job, self.training, self.physics = number, job, training, physics
        self.generation = Generation(0)
        self.present: set[Gpu] = set()  # GPUs with a process of this job
        self.prepared: dict[Gpu, float] = {}  # newcomers: since when they warm up
        self.pending: Pending | None = None  # the order that is being carried out
        self.held: Allocation | None = None  # those who have the job's state
        self.described = False
        self.ran_before = False
        self.finishing = False  # all epochs are done, and nobody knows yet
        self.measured: set[Configuration] = set()
        # two counters that make what was planned for an earlier stretch or order void
        self.run = 0
        self.order = 0
        # where it is
        self.epochs = 0
        self.epoch_steps = 0
        self.epoch_samples = 0
        self.progress = 0.0  # effective epochs
        self.saved = 0.0  # progress at the last checkpoint: the end of an epoch
        # how it goes
        self.allocation: Allocation | None = None  # None: it stands still
        self.batch = 0  # of the last stretch
        self.low_batch = 0  # smallest since the last epoch ended
        self.stretch_steps = 0  # since the configuration changed
        self.configuration = Configuration(0, 0, 0)
        self.since = 0.0
        self.step_seconds = math.inf
        self.worth = 1.0
        self.sharing = 1  # jobs on its busiest network card, itself included
        self.spike, self.spiked_at = Setback(), 0  # the last one, and after which epoch

    def resolved(self, allocation: Allocation) -> Allocation:
        """With the script's own batch, where the plan has none."""
        return allocation.resolved(self.training.base_batch, self.physics.max_local_batch)

    def begin(self, at: float, allocation: Allocation, sharing: int = 1) -> None:
        """Train like this from now on."""
        self.run += 1
        self.allocation = self.held = allocation
        self.since = at
        self.sharing = sharing
        self.step_seconds = self.physics.step_seconds(allocation, sharing)
        self.stretch_steps = 0
        # against the smallest batch of this epoch: many small jumps are a large one
        setback = self.physics.setback(self.low_batch, allocation.batch)
        self.low_batch = min(self.low_batch or allocation.batch, allocation.batch)
        if setback.epochs:
            self.low_batch = allocation.batch
            self.progress = max(0.0, self.progress - setback.epochs)
            self.saved = min(self.saved, self.progress)
            self.spike, self.spiked_at = setback, self.epochs
        self.batch = allocation.batch
        self.configuration = Configuration(
            allocation.n_gpus, allocation.n_nodes, allocation.batch, allocation.micro_steps
        )
        self._appraise()

    def _appraise(self) -> None:
        self.worth = self.physics.efficiency(self.batch, self.progress)

    def epoch_end(self) -> float:
        """When the epoch under way will be done, if nothing changes."""
        left = self.training.dataset_size - self.epoch_samples
        return self.since + -(-left // self.batch) * self.step_seconds

    def boundary(self, at: float) -> float:
        """The end of the step under way: the next moment at which something may change."""
        if self.allocation is None:
            return at
        steps = max(0, math.ceil((at - self.since) / self.step_seconds - _SLACK))
        return max(at, self.since + steps * self.step_seconds)

    def settle(self, at: float) -> None:
        """Book the whole steps made up to `at`; a step under way is lost."""
        if self.allocation is None:
            return
        steps = max(0, math.floor((at - self.since) / self.step_seconds + _SLACK))
        left = self.training.dataset_size - self.epoch_samples
        samples = min(steps * self.batch, left)
        self._book(steps, samples)
        self.since += steps * self.step_seconds

    def share_network(self, at: float, sharing: int) -> None:
        """Others have come to, or gone from, its network card: the step under way changes pace."""
        assert self.allocation is not None
        self.settle(at)
        part_done = (at - self.since) / self.step_seconds
        self.run += 1
        self.sharing = sharing
        self.step_seconds = self.physics.step_seconds(self.allocation, sharing)
        self.since = at - part_done * self.step_seconds

    def time_of(self, death: Death) -> float:
        """When it will die, if nothing changes: at the end of a step."""
        size = self.training.dataset_size
        if death.epochs is not None:
            samples = (death.epochs - self.epochs) * size - self.epoch_samples
        else:
            assert death.progress is not None
            samples = (death.progress - self.progress) / self.worth * size
        steps = max(0, math.ceil(samples / self.batch - _SLACK))
        return self.since + steps * self.step_seconds

    def loss(self) -> float | None:
        """Of the epoch that is done, with what is left of a spike."""
        loss = self.physics.loss(self.progress)
        spike = self.spike
        if loss is None or not spike.loss_rise:
            return loss
        calm = math.exp(-(self.epochs - self.spiked_at) / spike.loss_epochs)
        return loss * (1.0 + spike.loss_rise * calm)

    def halt(self) -> None:
        """Stand still: between two configurations, or out of GPUs."""
        self.run += 1
        self.allocation = None

    def finish_epoch(self, at: float) -> tuple[int, int]:
        """(steps, samples) of the epoch that is done; its end is checkpointed.

        What was left of it is booked as such: dividing a long time by a short step would not
        be exact.
        """
        left = self.training.dataset_size - self.epoch_samples
        self._book(-(-left // self.batch), left)
        self.since = at
        steps, samples = self.epoch_steps, self.epoch_samples
        self.epochs += 1
        self.epoch_steps = self.epoch_samples = 0
        self.saved = self.progress
        self.low_batch = self.batch
        return steps, samples

    def _book(self, steps: int, samples: int) -> None:
        self.epoch_steps += steps
        self.stretch_steps += steps
        self.epoch_samples += samples
        self.progress += samples / self.training.dataset_size * self.worth
        self._appraise()

    def fall_back(self) -> None:
        """To the last checkpoint."""
        self.epoch_steps = self.epoch_samples = 0
        self.progress = self.saved
