"""The loop of a training script, made elastic: what `ones.join` gives back.

    for epoch in job.epochs(30):
        for x, y in job.batches():
            job.step(loss_fn(model(x), y))
        job.report(accuracy=evaluate(model))

Alone, under plain `python`, this is an ordinary loop on one device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from ones.errors import UserError
from ones.stopping import StopRule, after_epoch
from ones.train.crew import Crew
from ones.train.loading import Loader, to_device
from ones.train.replica import Replica
from ones.train.reporting import Reporter
from ones.train.sampler import Division, Portion
from ones.train.stepping import Stepper
from ones.wire.bounds import MOST_EPOCHS, as_measure
from ones.wire.messages import Epoch

SchedulerStep = Literal["epoch", "step"]


class Job:
    """The handle that a training script holds. Made by `ones.join`."""

    def __init__(
        self,
        replica: Replica,
        loader: Loader,
        division: Division,
        *,
        device: torch.device,
        scheduler_step: SchedulerStep = "epoch",
        stop: StopRule | None = None,
        crew: Crew | None = None,
    ) -> None:
        self.device = device
        self._replica, self._loader, self._division = replica, loader, division
        self._progress = replica.progress
        self._scheduler_step = scheduler_step
        self._stop = stop
        self._crew = crew
        self._stepper = Stepper(replica, device, crew, self._stepped)
        self._reported: dict[str, float] = {}
        self._over = False
        if crew is not None:
            self._reporter = Reporter(crew.place.say)
            crew.place.on_switched.append(self._switched)

    # what a script may want to know

    @property
    def is_main(self) -> bool:
        """True in one worker of the job: the one that prints and writes files."""
        return self._crew is None or self._crew.rank == 0

    @property
    def workers(self) -> int:
        return len(self._division.shares)

    @property
    def batch(self) -> int:
        """Samples per optimizer step, of all workers together."""
        return self._division.batch

    @property
    def steps(self) -> int:
        """Optimizer steps so far."""
        return self._progress.step

    def log(self, *words: object) -> None:
        """Print in one worker only."""
        if self.is_main:
            print(*words, flush=True)

    # the loop

    def epochs(self, count: int) -> Iterator[int]:
        """Epochs from 0 to `count`; a newcomer enters at the present one."""
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
        """The rest of the epoch in micro-batches, on `job.device`."""
        epoch = self._progress.epoch
        if self._crew is not None:
            self._reporter.epoch_begins()
        while self._settle(epoch):
            steps = self._loader.steps(self._division, epoch, self._progress.offset)
            for portion, micro in steps:
                self._stepper.begin(portion, self._division)
                for data in micro:
                    self._stepper.hand_out()
                    yield to_device(data, self.device)
                self._stepper.end()
                if self._crew is not None and (self._crew.restless or self._is_over):
                    break
            else:
                if self._all_are_through():
                    break
        self._stepper.leave()

    def step(self, loss: Tensor, *, clip: float | None = None, weight: float | None = None) -> bool:
        """Backward; with the last micro-batch also all-reduce, clip, optimizer step, zero_grad.

        `weight`: valid targets in this micro-batch, where the loss ignores some; give it
        in every step or in none. True: the parameters were updated.
        """
        return self._stepper.take(loss, clip, weight)

    def report(self, *, accuracy: float | None = None, **values: float) -> None:
        """What this epoch brought. All workers call it; the main one's values count."""
        if accuracy is not None:
            values["accuracy"] = accuracy
        self._reported.update({name: float(value) for name, value in values.items()})

    def memory_limit(self) -> int | None:
        """What to believe after memory ran out in the present step."""
        return self._stepper.memory_limit()

    # between steps

    @property
    def _is_over(self) -> bool:
        return self._over or (self._crew is not None and self._crew.over)

    def _settle(self, epoch: int) -> bool:
        """False: this epoch is done, here or for those whose state we got."""
        if self._crew is not None:
            self._crew.settle()
            self._division = self._crew.place.division
        return self._progress.epoch == epoch and not self._is_over

    def _switched(self, was_first: bool) -> None:
        self._reporter.changed()
        assert self._crew is not None
        self._division = self._crew.place.division
        if self._crew.rank == 0 and not was_first and self._progress.last.steps:
            self._tell_epoch()  # the first worker was another one; did it live to tell?

    def _all_are_through(self) -> bool:
        """Before the script evaluates: batch norm's statistics are the first worker's."""
        last = self._progress.epoch + 1 == self._progress.epochs
        return self._crew is None or self._crew.end_epoch(last=last)

    def _stepped(self, portion: Portion) -> None:
        self._advance_schedule(portion.total)
        crew = self._crew
        if crew is not None and crew.place.formation is not None:
            crew.stepped()
            if crew.rank == 0:
                micro = max(portion.micro, default=0)
                self._reporter.stepped(crew.place.formation, self._progress, micro)

    def _advance_schedule(self, samples: int) -> None:
        """A schedule in steps was written for the base batch: larger steps count for more."""
        scheduler, progress = self._replica.scheduler, self._progress
        if scheduler is None or self._scheduler_step != "step":
            return
        progress.schedule_credit += samples / self._replica.rate.base_batch
        while progress.schedule_credit >= 1.0 - 1e-9:
            progress.schedule_credit -= 1.0
            scheduler.step()

    def _end_epoch(self, epoch: int) -> None:
        progress = self._progress
        if progress.epoch == epoch:  # else we got the state of somebody who is beyond it
            progress.end_epoch()
            self._step_schedule()
        last = progress.last
        last.accuracy = self._reported.get("accuracy")
        if self._stop is not None and self._crew is None:
            progress.track, reason = after_epoch(
                self._stop, progress.track, loss=last.mean_loss, accuracy=last.accuracy
            )
            self._over = reason is not None
        crew = self._crew
        if crew is not None and crew.rank == 0 and crew.place.formation is not None:
            self._reporter.tell_speed(crew.place.formation)
            self._tell_epoch()

    def _tell_epoch(self) -> None:
        """Of the last epoch that is complete."""
        progress, last = self._progress, self._progress.last
        assert self._crew is not None
        self._crew.place.say(
            Epoch(
                epoch=progress.epoch,
                steps=last.steps,
                samples=last.samples,
                loss=as_measure(last.mean_loss),
                accuracy=as_measure(last.accuracy),
                first_loss=as_measure(progress.first_loss),
                step_seconds=self._reporter.epoch_seconds_per_step(),
                gradient_noise=as_measure(self._stepper.noise.scale),
                planned_epochs=_planned(progress.epochs),
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


def _planned(epochs: int | None) -> int | None:
    """None: a loop without an end."""
    return epochs if epochs is not None and epochs <= MOST_EPOCHS else None
