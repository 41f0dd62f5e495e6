"""The loops of a script over epochs, steps and batches, the same on all workers.

A script leaves a loop by `break`, `return` or `job.stop()`. torch's and Python's own means do not
tell the other workers, so the worker tells them: in the next step it takes part without samples,
with a notice. Their step is undone, and their loops end, too. After a `break` the worker does so
when the script asks for the next epoch, or at its end: an error that leaves the loop ends in
neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

import torch

from ones.errors import UserError
from ones.train.buckets import Notice
from ones.train.compiled_sizes import mark_batch
from ones.train.elastic_group import ElasticGroup
from ones.train.loading import to_device
from ones.train.optimizer_step import OptimizerStepper
from ones.train.process_group import GroupLostError
from ones.train.progress import TrainingProgress
from ones.train.sampler import BatchPartition, StepSlice
from ones.train.schedules import Schedule
from ones.train.script_guard import ScriptGuard
from ones.train.stream_loader import AnyLoader
from ones.wire.work import Unit


class LoopEvents(Protocol):
    """What a loop tells its job."""

    def settles(self) -> None:
        """Called before changes between two steps."""

    def checkpoint_begun(self) -> None:
        """Called after a step that was followed by a checkpoint."""

    def data_ended(self, epoch: int) -> None:
        """Called before the script evaluates: no more batches come in this epoch."""

    def epoch_ended(self, epoch: int) -> bool:
        """Called when the script is done with an epoch. False: a worker was lost, so it is not."""


class TrainingLoop:
    """The position of a script in its loops."""

    def __init__(
        self,
        loader: AnyLoader,
        partition: BatchPartition,
        progress: TrainingProgress,
        stepper: OptimizerStepper,
        guard: ScriptGuard,
        schedule: Schedule,
        *,
        base_batch: int,
        device: torch.device,
        elastic: ElasticGroup | None,
        events: LoopEvents,
        has_micro_batches: bool = True,
    ) -> None:
        self._has_micro_batches = has_micro_batches
        self.loader, self.partition = loader, partition
        self._progress, self._stepper, self._guard = progress, stepper, guard
        self._schedule = schedule
        self._base_batch, self._device, self._elastic = base_batch, device, elastic
        self._events = events
        self.is_stopped = False  # alone: by a stop rule, or the script asked for it
        self._stop_asked = False
        self._is_running = False  # the script is within `epochs` or `steps`
        self._is_complete = False  # all batches of the current epoch were handled
        loader.connect(self._generation, self._exchange)

    @property
    def is_over(self) -> bool:
        return self.is_stopped or (self._elastic is not None and self._elastic.is_over)

    @property
    def _has_all_data(self) -> bool:
        """Whether the epoch's batches have all been trained on: no worker trains on others."""
        return self._progress.offset >= self.loader.size

    @property
    def _is_last(self) -> bool:
        return self._progress.epoch + 1 == self._progress.epochs

    # for the script

    def epochs(self, count: int, start: int) -> Iterator[int]:
        progress = self._progress
        progress.epochs = count
        self._schedule.start()
        if progress.step == 0 and progress.epoch < start:
            progress.epoch = progress.schedule_epochs = start
        self._is_running = True
        while progress.epoch < count and not self.is_over:
            epoch, self._is_complete = progress.epoch, False
            self._schedule.watch()
            yield epoch
            self._schedule.check()
            self._leave_batches()
            if progress.epoch == epoch and not (self._is_complete or self.is_over):
                if not self._has_all_data:
                    self._announce(Notice.STOP if self._stop_asked else Notice.BREAK)
                if not self.is_over:
                    self._end_data(epoch)
            if not self.is_over:
                self._events.epoch_ended(epoch)
            if self._stop_asked and progress.epoch < count:
                self._announce(Notice.STOP)
        self._close()

    def batches(self) -> Iterator[Any]:
        if not self._is_running:
            raise UserError(
                "job.batches() is called outside of a loop over epochs: write"
                " `for epoch in job.epochs(n):` around it"
            )
        epoch = self._progress.epoch
        yield from self._batches(epoch)
        if self._progress.epoch == epoch and not self.is_over:
            self._end_data(epoch)

    def work(self) -> Iterator[Any]:
        """A loop over steps, samples or tokens, as the progress has it."""
        progress = self._progress
        self._schedule.start()
        self._is_running = True
        while not progress.has_all and not self.is_over:
            epoch = progress.epoch
            yield from self._batches(epoch, self._end_of_work())
            if progress.epoch == epoch and self._has_all_data and not self.is_over:
                self._events.data_ended(epoch)
                self._events.epoch_ended(epoch)
            if self._stop_asked and not progress.has_all:
                self._announce(Notice.STOP)
        self._close()

    def _end_of_work(self) -> int | None:
        """Where in the epoch the total is reached; None: tokens are counted as they come."""
        progress = self._progress
        assert progress.total is not None
        left = progress.total - progress.done
        match Unit(progress.unit):
            case Unit.SAMPLES:
                return progress.offset + left
            case Unit.TOKENS:
                return None
            case _:
                return (self.base_steps_at(progress.offset) + left) * self._base_batch

    @property
    def steps_per_epoch(self) -> int:
        return self.base_steps_at(self.loader.size)

    def stop(self) -> None:
        """Ends the loops of all workers; the current batch is the last."""
        self._stop_asked = True

    def base_steps_at(self, offset: int) -> int:
        """Steps from the start of an epoch, at the script's own batch size; the last is short."""
        whole = offset >= self.loader.size
        return -(-offset // self._base_batch) if whole else offset // self._base_batch

    def end_script(self) -> None:
        """Tells the other workers, at the end of the script, that it has left its loops."""
        if not self._is_running:
            return
        self._leave_batches()
        progress = self._progress
        if progress.total is not None:
            if not progress.has_all:
                self._announce(Notice.STOP)
            self._close()
            return
        # as far as the other workers go by themselves
        if self._has_all_data and not self._is_complete:
            self._end_data(progress.epoch)
        if self._is_complete:
            is_last = self._is_last
            self._events.epoch_ended(progress.epoch)
            if is_last:
                return
        self._announce(Notice.STOP)
        self._close()

    # within

    def _batches(self, epoch: int, end: int | None = None) -> Iterator[Any]:
        stepper, elastic, progress = self._stepper, self._elastic, self._progress
        self._guard.enter_loop()
        try:
            while self._settle(epoch):
                steps = self.loader.steps(self.partition, epoch, progress.offset, end)
                for step in steps:
                    if step is None or not self._begin(step[0]):
                        break  # a worker was lost, or has left the loop
                    _, micro_batches = step
                    for data in micro_batches:
                        if not stepper.next_micro_batch():
                            break  # the step was undone: memory ran out
                        self._schedule.watch()
                        yield mark_batch(to_device(data, self._device), stepper.micro_batch)
                        self._schedule.check()
                    stepper.end()
                    if elastic is not None and elastic.context.save_if_due():
                        self._events.checkpoint_begun()
                    if self._stop_asked and not self._is_at(end):  # else the loop ends anyway
                        self._announce(Notice.STOP)
                    if self._must_settle:
                        break
                else:
                    break
                if progress.has_all or (elastic is not None and elastic.leaves_epoch):
                    break
        finally:
            self._guard.leave_loop()
        stepper.cancel()

    def _begin(self, part: StepSlice) -> bool:
        if self._elastic is not None:
            self._elastic.comparison.order = self.loader.mark
        return self._stepper.begin(part, self.partition)

    @property
    def _must_settle(self) -> bool:
        elastic = self._elastic
        if self._progress.unit == Unit.TOKENS and self._progress.has_all:
            return True
        return self.is_over or (
            elastic is not None and (elastic.has_pending_change or elastic.leaves_epoch)
        )

    def _settle(self, epoch: int) -> bool:
        """Makes pending changes; False if the epoch is done, here or in the state received."""
        elastic = self._elastic
        if elastic is not None:
            elastic.leaves_epoch = False
            self._events.settles()
            elastic.settle()
            self.take_partition()
        return self._progress.epoch == epoch and not self.is_over

    def take_partition(self) -> None:
        """Takes the division of the batch among the workers, after a change."""
        assert self._elastic is not None
        partition = self._elastic.context.partition
        if not self._has_micro_batches:
            whole = (1,) * len(partition.shares)
            partition = replace(partition, micro_steps=whole, limit=None)
        self.partition = partition

    def _end_data(self, epoch: int) -> None:
        """Makes the workers ready for the script's evaluation."""
        elastic = self._elastic
        # copies rank 0's batch norm statistics to all workers
        while elastic is not None and not elastic.end_epoch(last=self._is_last):
            if not self._settle(epoch):
                return
        self._is_complete = True
        self._events.data_ended(epoch)

    def _leave_batches(self) -> None:
        self._guard.leave_loop()
        self._stepper.cancel()

    def _announce(self, notice: Notice) -> None:
        """Ends the loops of all workers, at the step that the others have reached."""
        elastic = self._elastic
        while not self.is_over:
            if elastic is None:
                self.is_stopped = notice is Notice.STOP
                return
            self._settle(self._progress.epoch)
            if elastic.group is None:
                elastic.is_over |= notice is Notice.STOP
                return
            is_agreeing = self.loader.must_agree(self._progress.offset)
            if self._stepper.announce(notice, is_agreeing=is_agreeing):
                return

    def _is_at(self, end: int | None) -> bool:
        progress = self._progress
        at_end = end is not None and progress.offset >= end
        return self._has_all_data or at_end or progress.has_all

    # for the loader of a stream

    def _generation(self) -> tuple[int, int]:
        layout = None if self._elastic is None else self._elastic.context.layout
        return (0, 0) if layout is None else layout.generation

    def _exchange(self, values: torch.Tensor) -> bool:
        """Sums values over all workers; False: a worker was lost, or has left the loop."""
        elastic = self._elastic
        if elastic is None or elastic.group is None:
            return True
        if not self._stepper.agree():
            return False
        try:
            elastic.group.sum_on_host(values)
        except GroupLostError:
            elastic.step_failed()
            return False
        return True

    def _close(self) -> None:
        """After the last loop: from here on each worker may end at any time."""
        self._is_running = False
        elastic = self._elastic
        if elastic is not None and (elastic.is_stopped or self._progress.total is not None):
            elastic.end_epoch(last=True)
