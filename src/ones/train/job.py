"""The loop of a training script, made elastic: what `ones.join` gives back.

    for epoch in job.epochs(30):
        for x, y in job.batches():
            job.step(loss_fn(model(x), y))
        job.report(accuracy=evaluate(model))

Alone, under plain `python`, this is an ordinary loop on one device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ones.errors import UserError
from ones.stopping import StopRule, after_epoch
from ones.train.buckets import Buckets, Notice
from ones.train.crew import Crew
from ones.train.group import GroupLostError
from ones.train.loading import Loader, to_device
from ones.train.noise import GradientNoise
from ones.train.replica import Replica
from ones.train.reporting import Reporter
from ones.train.sampler import Division, Portion
from ones.wire.messages import Epoch

SchedulerStep = Literal["epoch", "step"]

_MEASURE_EVERY = 10  # steps between two looks at the gradient noise


@dataclass(slots=True)
class _Step:
    """One optimizer step under way."""

    portion: Portion
    index: int = -1  # of the micro-batch that the script has
    weight: float = 0.0  # samples, or valid targets, whose loss has come back
    loss: Tensor | float = 0.0  # sum of weight times mean loss

    @property
    def is_last(self) -> bool:
        return self.index == len(self.portion.micro) - 1


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
        self._model, self._optimizer = replica.model, replica.optimizer
        self._progress = replica.progress
        self._scheduler_step = scheduler_step
        self._stop = stop
        self._crew = crew
        self._step: _Step | None = None
        self._reported: dict[str, float] = {}
        self._over = False
        self._noise = GradientNoise()
        self._trained = [p for g in self._optimizer.param_groups for p in g["params"]]
        self._state = [b for b in self._model.buffers() if crew is not None]
        self._before: list[Tensor] = []
        self._proven = 0  # the largest micro-batch that went through
        if crew is not None:
            self._buckets = Buckets(list(self._model.parameters()))
            self._reporter = Reporter(crew.say)
            crew.on_switched.append(self._switched)

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
                self._begin(portion)
                for data in micro:
                    assert self._step is not None
                    self._step.index += 1
                    yield to_device(data, self.device)
                if self._step is not None:
                    self._update(None)  # nothing to do here, or the script left out `job.step`
                if self._crew is not None and (self._crew.restless or self._is_over):
                    break
            else:
                if self._all_are_through():
                    break
        self._step = None

    def step(self, loss: Tensor, *, clip: float | None = None, weight: float | None = None) -> bool:
        """Backward; with the last micro-batch also all-reduce, clip, optimizer step, zero_grad.

        `weight`: valid targets in this micro-batch, where the loss ignores some; give it
        in every step or in none. True: the parameters were updated.
        """
        step = self._step
        if step is None or step.index < 0:
            raise UserError("job.step belongs into `for ... in job.batches()`, once for each batch")
        if weight is not None:
            self._progress.weighted = True
        due = float(step.portion.micro[step.index] if weight is None else weight)
        if due > 0.0:
            step.weight += due
            step.loss = step.loss + loss.detach() * due
            if step.is_last:
                self._arm(step)
            part = due / step.portion.count
            self._backward(loss if part == 1.0 else loss * part)
        if not step.is_last:
            return False
        return self._update(clip)

    def report(self, *, accuracy: float | None = None, **values: float) -> None:
        """What this epoch brought. All workers call it; the main one's values count."""
        if accuracy is not None:
            values["accuracy"] = accuracy
        self._reported.update({name: float(value) for name, value in values.items()})

    # one step

    def _begin(self, portion: Portion) -> None:
        self._step = _Step(portion)
        if self._state and self._crew is not None and self._crew.group is not None:
            # what forward changes (batch norm) must not count if the step fails
            if not self._before:
                self._before = [b.clone() for b in self._state]
            else:
                torch._foreach_copy_(self._before, self._state)

    def _backward(self, loss: Tensor) -> None:
        scaler = self._replica.scaler
        torch.autograd.backward(loss if scaler is None else scaler.scale(loss))

    def _arm(self, step: _Step) -> None:
        """From here on gradients go to the others as backward yields them."""
        crew = self._crew
        if crew is None or crew.group is None or self._buckets.armed:
            return
        notices = crew.notices()
        notices[Notice.LOSS] = step.loss / step.portion.total
        measure = self._progress.step % _MEASURE_EVERY == 0
        weight = step.portion.count / step.portion.total
        self._buckets.arm(crew.group, weight, notices, measure=measure)
        if self._progress.weighted:
            self._valid = torch.tensor([step.weight], dtype=torch.float64, device=self.device)
            self._buckets.add_up(self._valid)

    def _update(self, clip: float | None) -> bool:
        step = self._step
        assert step is not None
        self._step = None
        try:
            weight, loss = self._reduce(step)
        except GroupLostError:
            self._undo()
            return False
        if weight > 0.0:
            if self._progress.weighted and weight != step.portion.total:
                self._multiply_gradients(step.portion.total / weight)
            self._apply(clip)
        self._optimizer.zero_grad(set_to_none=True)
        self._count(step, weight, loss)
        return weight > 0.0

    def _reduce(self, step: _Step) -> tuple[float, float]:
        """Weight and mean loss of the whole step; gradients are those of the global batch."""
        crew = self._crew
        if crew is None or crew.group is None:
            self._look_at_noise(step)
            loss = float(step.loss) / step.weight if step.weight else 0.0
            if crew is not None:
                notices = crew.notices()
                crew.heard([float(notices.get(notice, 0.0)) for notice in Notice])
            return step.weight, loss
        self._arm(step)  # where this worker had nothing to send backward
        sums = self._buckets.finish()
        weight = float(self._valid) if self._progress.weighted else float(step.portion.total)
        loss = sums[Notice.LOSS] * step.portion.total / weight if weight else 0.0
        if sums[Notice.SQUARE] > 0.0:
            counts = self._division.counts(step.portion)
            self._noise.workers(sums[Notice.SQUARE], counts, self._buckets.square_of_gradients())
        crew.heard(sums)
        return weight, loss

    def _look_at_noise(self, step: _Step) -> None:
        if self._crew is None:
            return
        at = self._progress.step % (2 * _MEASURE_EVERY)
        if at in (0, 1):
            gradients = [p.grad for p in self._trained if p.grad is not None]
            if at == 0:
                self._noise.keep(gradients)
            else:
                self._noise.compare(gradients, step.portion.count)

    def _apply(self, clip: float | None) -> None:
        optimizer, scaler = self._optimizer, self._replica.scaler
        if clip is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(self._trained, clip)
        with self._replica.rate.applied(optimizer, self._progress.step):
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()

    def _multiply_gradients(self, factor: float) -> None:
        gradients = [p.grad for p in self._trained if p.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, factor)

    def _count(self, step: _Step, weight: float, loss: float) -> None:
        progress, portion = self._progress, step.portion
        if progress.first_loss is None and weight > 0.0:
            progress.first_loss = loss
        progress.sums.steps += 1
        progress.sums.samples += portion.total
        progress.sums.loss += loss * weight
        progress.sums.weight += weight
        self._proven = max(self._proven, *portion.micro, 0)
        progress.step += 1
        progress.offset = portion.end
        self._advance_schedule(portion.total)
        crew = self._crew
        if crew is not None and crew.formation is not None:
            crew.stepped()
            if crew.rank == 0:
                micro = max(portion.micro, default=0)
                self._reporter.stepped(crew.formation, progress, micro)

    def _undo(self) -> None:
        """The step failed: as if it had not begun. Its samples come again."""
        assert self._crew is not None
        self._optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            if self._before:
                torch._foreach_copy_(self._state, self._before)
        self._crew.lost()

    def memory_limit(self) -> int | None:
        """What to believe after memory ran out in the present step."""
        step = self._step
        if step is None or step.index < 0:
            return None
        tried = step.portion.micro[step.index]
        return max(1, tried // 2, min(self._proven, tried - 1))

    # between steps

    @property
    def _is_over(self) -> bool:
        return self._over or (self._crew is not None and self._crew.over)

    def _settle(self, epoch: int) -> bool:
        """False: this epoch is done, here or for those whose state we got."""
        if self._crew is not None:
            self._crew.settle()
            self._division = self._crew.division
        return self._progress.epoch == epoch and not self._is_over

    def _switched(self, was_first: bool) -> None:
        self._reporter.changed()
        assert self._crew is not None
        self._division = self._crew.division
        if self._crew.rank == 0 and not was_first and self._progress.last.steps:
            self._tell_epoch()  # the first worker was another one; did it live to tell?

    def _all_are_through(self) -> bool:
        """Before the script evaluates: batch norm's statistics are the first worker's."""
        last = self._progress.epoch + 1 == self._progress.epochs
        return self._crew is None or self._crew.end_epoch(last=last)

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
        if crew is not None and crew.rank == 0 and crew.formation is not None:
            self._reporter.tell_speed(crew.formation)
            self._tell_epoch()

    def _tell_epoch(self) -> None:
        """Of the last epoch that is complete."""
        progress, last = self._progress, self._progress.last
        assert self._crew is not None
        self._crew.say(
            Epoch(
                epoch=progress.epoch,
                steps=last.steps,
                samples=last.samples,
                loss=last.mean_loss,
                accuracy=last.accuracy,
                first_loss=progress.first_loss,
                step_seconds=self._reporter.epoch_seconds_per_step(),
                gradient_noise=self._noise.scale,
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
