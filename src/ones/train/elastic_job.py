"""The training loop of a script, made elastic: the result of `ones.join`.

    for epoch in job.epochs(30):
        for x, y in job.batches():
            job.step(loss_fn(model(x), y))
        job.report(accuracy=evaluate(model))

Under plain `python`, without a controller, this is an ordinary loop on one device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from ones.errors import UserError
from ones.stopping import StopRule, after_epoch
from ones.train.elastic_group import ElasticGroup
from ones.train.loading import Loader, to_device
from ones.train.optimizer_step import OptimizerStepper
from ones.train.replica import Replica
from ones.train.reporting import Reporter
from ones.train.sampler import BatchPartition, StepSlice
from ones.wire.bounds import MOST_EPOCHS, as_measure
from ones.wire.messages import Epoch

SchedulerStep = Literal["epoch", "step"]


class ElasticJob:
    """A training script's handle on its job. Made by `ones.join`."""

    def __init__(
        self,
        replica: Replica,
        loader: Loader,
        partition: BatchPartition,
        *,
        device: torch.device,
        scheduler_step: SchedulerStep = "epoch",
        stop: StopRule | None = None,
        elastic: ElasticGroup | None = None,
    ) -> None:
        self.device = device
        self._replica, self._loader, self._partition = replica, loader, partition
        self._progress = replica.progress
        self._scheduler_step = scheduler_step
        self._stop = stop
        self._elastic = elastic  # None: without a controller
        self._stepper = OptimizerStepper(replica, device, elastic, self._after_step)
        self._reported: dict[str, float] = {}
        self._stopped = False
        if elastic is not None:
            self._reporter = Reporter(elastic.context.report)
            elastic.context.on_switched.append(self._on_switched)

    # for the script

    @property
    def is_main(self) -> bool:
        """True in one worker of the job: the one that prints and writes files."""
        return self._elastic is None or self._elastic.rank == 0

    @property
    def workers(self) -> int:
        return len(self._partition.shares)

    @property
    def batch(self) -> int:
        """Samples per optimizer step, of all workers together."""
        return self._partition.batch

    @property
    def steps(self) -> int:
        """Optimizer steps so far."""
        return self._progress.step

    def log(self, *values: object) -> None:
        """Prints in one worker only."""
        if self.is_main:
            print(*values, flush=True)

    def epochs(self, count: int) -> Iterator[int]:
        """Yields the epochs 0 to `count` - 1; a joining worker starts at the current one."""
        if count < 1:
            raise UserError(f"epochs {count} is not at least 1")
        self._progress.epochs = count
        while self._progress.epoch < count and not self._is_over:
            epoch = self._progress.epoch
            self._reported = {}
            yield epoch
            if not self._is_over:
                self._end_epoch(epoch)

    def batches(self) -> Iterator[Any]:
        """Yields the rest of the epoch in micro-batches, on `job.device`."""
        epoch = self._progress.epoch
        if self._elastic is not None:
            self._reporter.start_epoch()
        while self._settle(epoch):
            steps = self._loader.steps(self._partition, epoch, self._progress.offset)
            for part, micro_batches in steps:
                self._stepper.begin(part, self._partition)
                for data in micro_batches:
                    if not self._stepper.next_micro_batch():
                        break  # the step was undone: memory ran out
                    yield to_device(data, self.device)
                self._stepper.end()
                if self._elastic is not None and (
                    self._elastic.has_pending_change or self._is_over
                ):
                    break
            else:
                if self._synchronise_buffers():
                    break
        self._stepper.cancel()

    def step(self, loss: Tensor, *, clip: float | None = None, weight: float | None = None) -> bool:
        """Backward; with the last micro-batch also all-reduce, clip, optimizer step, zero_grad.

        `weight`: number of valid targets in this micro-batch, if the loss ignores some; pass it
        in every step or in none. Returns True if the parameters were updated.
        """
        return self._stepper.backward(loss, clip, weight)

    def report(self, *, accuracy: float | None = None, **values: float) -> None:
        """Reports results of this epoch. All workers call it; the values of the main one count."""
        if accuracy is not None:
            values["accuracy"] = accuracy
        self._reported.update({name: float(value) for name, value in values.items()})

    def memory_limit(self) -> int | None:
        """The samples that fit, estimated after memory ran out in the current step."""
        return self._stepper.memory_limit()

    # between steps

    @property
    def _is_over(self) -> bool:
        return self._stopped or (self._elastic is not None and self._elastic.is_over)

    def _settle(self, epoch: int) -> bool:
        """Makes pending changes; False if the epoch is done, here or in the state received."""
        elastic = self._elastic
        if elastic is not None:
            if elastic.has_pending_change and not elastic.is_over:
                self._report_speed()  # what was measured so far is of the present layout
            elastic.settle()
            self._partition = elastic.context.partition
        return self._progress.epoch == epoch and not self._is_over

    def _on_switched(self, was_first: bool) -> None:
        assert self._elastic is not None
        layout = self._elastic.context.layout
        assert layout is not None
        self._reporter.reset(layout)
        self._partition = self._elastic.context.partition
        if self._elastic.rank == 0 and not was_first and self._progress.last.steps:
            self._report_epoch()  # the former rank 0 may have been lost before it reported

    def _synchronise_buffers(self) -> bool:
        """Copies rank 0's batch norm statistics to all workers, before the script evaluates."""
        last = self._progress.epoch + 1 == self._progress.epochs
        return self._elastic is None or self._elastic.end_epoch(last=last)

    def _after_step(self, part: StepSlice) -> None:
        self._advance_schedule(part.total)
        elastic = self._elastic
        if elastic is not None and elastic.context.layout is not None:
            is_disturbed = elastic.after_step()
            if elastic.rank == 0:
                micro_batch = max(part.micro_batches, default=0)
                noise = self._stepper.noise.scale
                self._reporter.after_step(
                    elastic.context.layout,
                    self._progress,
                    micro_batch,
                    noise,
                    is_disturbed=is_disturbed,
                )

    def _report_speed(self) -> None:
        elastic = self._elastic
        if elastic is not None and elastic.rank == 0 and elastic.context.layout is not None:
            self._reporter.report_speed(elastic.context.layout)

    def _advance_schedule(self, samples: int) -> None:
        """Steps a per-step schedule once per base batch: a larger batch makes several steps."""
        scheduler, progress = self._replica.scheduler, self._progress
        if scheduler is None or self._scheduler_step != "step":
            return
        progress.schedule_credit += samples / self._replica.rate.base_batch
        while progress.schedule_credit >= 1.0 - 1e-9:
            progress.schedule_credit -= 1.0
            scheduler.step()

    def _end_epoch(self, epoch: int) -> None:
        progress = self._progress
        if progress.epoch == epoch:  # else the state received is beyond it
            progress.end_epoch()
            self._step_schedule()
        last = progress.last
        last.accuracy = self._reported.get("accuracy")
        elastic = self._elastic
        if elastic is None:
            if self._stop is not None:
                progress.track, reason = after_epoch(
                    self._stop, progress.track, loss=last.mean_loss, accuracy=last.accuracy
                )
                self._stopped = reason is not None
        elif elastic.rank == 0 and elastic.context.layout is not None:
            self._report_speed()
            self._report_epoch()

    def _report_epoch(self) -> None:
        """Reports the last complete epoch."""
        progress, last = self._progress, self._progress.last
        assert self._elastic is not None
        planned = progress.epochs
        self._elastic.context.report(
            Epoch(
                epoch=progress.epoch,
                steps=last.steps,
                samples=last.samples,
                loss=as_measure(last.mean_loss),
                accuracy=as_measure(last.accuracy),
                first_loss=as_measure(progress.first_loss),
                step_seconds=self._reporter.take_epoch_step_seconds(),
                gradient_noise=as_measure(self._stepper.noise.scale),
                # more than can be reported: a loop without an end
                planned_epochs=planned if planned and planned <= MOST_EPOCHS else None,
            )
        )

    def _step_schedule(self) -> None:
        scheduler = self._replica.scheduler
        if scheduler is None or self._scheduler_step != "epoch":
            return
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            scheduler.step(self._progress.last.mean_loss or 0.0)
        else:
            scheduler.step()
