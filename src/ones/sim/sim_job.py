"""One simulated job: its progress and its present speed.

Between two changes all steps take the same time. `settle` counts the steps up to a time; `begin`
starts a stretch of training in another configuration. The caller passes the time.
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

_SLACK = 1e-9  # in steps: tolerance for rounding errors


class Pending(NamedTuple):
    """An order that is being carried out."""

    kind: OrderKind
    generation: Generation


class SimJob:
    """State of a simulated job; only the engine changes it."""

    __slots__ = (
        "allocation", "batch", "carried", "configuration", "described", "epoch_samples",
        "epoch_steps", "epochs", "evaluated", "finishing", "generation", "held", "job",
        "low_batch", "measured", "number", "order", "pending", "physics", "prepared", "present",
        "progress", "ran_before", "run", "saved", "sharing", "since", "slowdown", "spike",
        "spiked_at", "step_seconds", "stretch_steps", "suspended_on", "training", "worth",
    )  # fmt: skip

    def __init__(
        self, number: int, job: Job, training: Training | RecordedTraining, physics: JobPhysics
    ) -> None:
        self.number, self.job, self.training, self.physics = number, job, training, physics
        self.generation = Generation(0)
        self.present: set[Gpu] = set()  # GPUs with a process of this job
        self.prepared: dict[Gpu, float] = {}  # joining workers: when they began to start
        self.pending: Pending | None = None  # the order that is being carried out
        self.held: Allocation | None = None  # workers that have the training state
        self.described = False
        self.ran_before = False
        self.suspended_on: tuple[Gpu, ...] = ()  # GPUs of the last orderly stop
        self.finishing = False  # all epochs are done, and the end is not reported yet
        self.measured: set[Configuration] = set()
        # counters of stretches and orders: callbacks of an earlier one are dropped
        self.run = 0
        self.order = 0
        # progress
        self.epochs = 0
        self.epoch_steps = 0
        self.epoch_samples = 0
        self.carried = (0, 0)  # steps and samples of epochs that restarted before their half
        self.evaluated = physics.epoch_rules.evaluation is None  # before training
        self.progress = 0.0  # effective epochs
        self.saved = 0.0  # progress at the last checkpoint: the end of an epoch
        # present stretch of training
        self.allocation: Allocation | None = None  # None: the job does not train
        self.batch = 0  # of the last stretch of training
        self.low_batch = 0  # smallest since the last epoch ended
        self.stretch_steps = 0  # since the configuration changed
        self.configuration = Configuration(0, 0, 0)
        self.since = 0.0
        self.step_seconds = math.inf
        self.worth = 1.0
        self.sharing = 1  # jobs on its busiest network card, itself included
        self.slowdown = 1.0  # factor on its step time, by its slowest node
        # the last setback, and the epochs done at that time
        self.spike, self.spiked_at = Setback(), 0

    def resolved(self, allocation: Allocation) -> Allocation:
        """The allocation with the script's own batch if the plan has none."""
        first = self.job.bounded_batch(self.training.base_batch)
        return allocation.resolved(first, self.physics.max_local_batch)

    @property
    def passes(self) -> int:
        """Epochs without the evaluation before training."""
        counted = self.evaluated and self.physics.epoch_rules.evaluation is not None
        return self.epochs - counted

    def begin(
        self, at: float, allocation: Allocation, sharing: int = 1, slowdown: float = 1.0
    ) -> None:
        """Starts a stretch of training with this allocation."""
        self.run += 1
        self.allocation = self.held = allocation
        self.since = at
        self.sharing, self.slowdown = sharing, slowdown
        self.step_seconds = slowdown * self.physics.step_seconds(allocation, sharing)
        self.stretch_steps = 0
        # compared with the smallest batch of this epoch: many small jumps equal a large one
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
        """Time at which the present epoch ends if nothing changes."""
        left = self.training.dataset_size - self.epoch_samples
        return self.since + -(-left // self.batch) * self.step_seconds

    def boundary(self, at: float) -> float:
        """End of the present step: the next time at which the job can change."""
        if self.allocation is None:
            return at
        steps = max(0, math.ceil((at - self.since) / self.step_seconds - _SLACK))
        return max(at, self.since + steps * self.step_seconds)

    def settle(self, at: float) -> None:
        """Counts the whole steps done up to `at`; a partial step is not counted."""
        if self.allocation is None:
            return
        steps = max(0, math.floor((at - self.since) / self.step_seconds + _SLACK))
        left = self.training.dataset_size - self.epoch_samples
        samples = min(steps * self.batch, left)
        self._book(steps, samples)
        self.since += steps * self.step_seconds

    def change_pace(self, at: float, sharing: int, slowdown: float) -> None:
        """Changes what slows the job down; the present step changes its speed."""
        assert self.allocation is not None
        self.settle(at)
        part_done = (at - self.since) / self.step_seconds
        self.run += 1
        self.sharing, self.slowdown = sharing, slowdown
        self.step_seconds = slowdown * self.physics.step_seconds(self.allocation, sharing)
        if at >= self.since:  # else its first step has not begun
            self.since = at - part_done * self.step_seconds

    def time_of(self, death: Death) -> float:
        """Time of this end if nothing changes: the end of a step."""
        size = self.training.dataset_size
        if death.epochs is not None:
            samples = (death.epochs - self.passes) * size - self.epoch_samples
        else:
            assert death.progress is not None
            samples = (death.progress - self.progress) / self.worth * size
        steps = max(0, math.ceil(samples / self.batch - _SLACK))
        return self.since + steps * self.step_seconds

    def loss(self) -> float | None:
        """Loss of the last epoch, including the remaining part of a spike."""
        loss = self.physics.loss(self.progress)
        spike = self.spike
        if loss is None or not spike.loss_rise:
            return loss
        calm = math.exp(-(self.epochs - self.spiked_at) / spike.loss_epochs)
        return loss * (1.0 + spike.loss_rise * calm)

    def halt(self) -> None:
        """Stops training: between two configurations, or without GPUs."""
        self.run += 1
        self.allocation = None

    def finish_epoch(self, at: float) -> tuple[int, int]:
        """Ends the epoch with a checkpoint; returns its (steps, samples).

        The rest of the epoch is counted in samples: elapsed time / step time would not be exact.
        """
        left = self.training.dataset_size - self.epoch_samples
        self._book(-(-left // self.batch), left)
        self.since = at
        return self.close_epoch()

    def close_epoch(self) -> tuple[int, int]:
        """Counts the present epoch as done; returns its (steps, samples)."""
        self.carry_epoch()
        steps, samples = self.carried
        self.carried = (0, 0)
        self.epochs += 1
        self.low_batch = self.batch
        return steps, samples

    def carry_epoch(self) -> None:
        """Loses the position in the present epoch; its samples count with the next one."""
        steps, samples = self.carried
        self.carried = (steps + self.epoch_steps, samples + self.epoch_samples)
        self.epoch_steps = self.epoch_samples = 0
        self.saved = self.progress

    def _book(self, steps: int, samples: int) -> None:
        self.epoch_steps += steps
        self.stretch_steps += steps
        self.epoch_samples += samples
        self.progress += samples / self.training.dataset_size * self.worth
        self._appraise()

    def fall_back(self) -> None:
        """Returns to the progress of the last checkpoint."""
        self.epoch_steps = self.epoch_samples = 0
        self.progress = self.saved
