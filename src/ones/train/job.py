"""`ones.join` and what it gives back: the loop of a training script, made elastic.

    job = ones.join(model, optimizer, dataset, batch_size=256)
    for epoch in job.epochs(30):
        for x, y in job.batches():
            job.step(loss_fn(model(x), y))
        job.report(accuracy=evaluate(model))

Alone, under plain `python`, this is an ordinary loop on one device.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from ones.errors import UserError
from ones.stopping import StopRule, after_epoch
from ones.train.learning_rate import LearningRate, Rule, rule_for
from ones.train.loading import Loader, LoaderOptions, to_device
from ones.train.progress import Progress
from ones.train.sampler import Division, Portion
from ones.wire.environment import WorkerEnvironment

SchedulerStep = Literal["epoch", "step"]


@dataclass(slots=True)
class _Step:
    """One optimizer step under way."""

    portion: Portion
    index: int = -1  # of the micro-batch that the script has
    weight: float = 0.0  # samples, or valid targets, whose loss has come back
    weighted: bool = False  # the script counts valid targets
    loss: Tensor | float = 0.0  # sum of weight times mean loss

    @property
    def is_last(self) -> bool:
        return self.index == len(self.portion.micro) - 1


class Job:
    """The handle that a training script holds. Made by `ones.join`."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loader: Loader,
        rate: LearningRate,
        *,
        scheduler: Any = None,
        scheduler_step: SchedulerStep = "epoch",
        scaler: GradScaler | None = None,
        max_local_batch: int | None = None,
        minimum: int = 1,
        stop: StopRule | None = None,
        device: torch.device,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.scheduler, self.scaler = scheduler, scaler
        self.device = device
        self._loader, self._rate = loader, rate
        self._scheduler_step = scheduler_step
        self._stop = stop
        self._progress = Progress(seed=loader.seed)
        self._division = Division(
            shares=(rate.base_batch,),
            micro_steps=(1,),
            rank=0,
            limit=max_local_batch,
            minimum=minimum,
        )
        self._step: _Step | None = None
        self._reported: dict[str, float] = {}
        self._over = False

    # what a script may want to know

    @property
    def is_main(self) -> bool:
        """True in one worker of the job: the one that prints and writes files."""
        return True

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
        while self._progress.epoch < count and not self._over:
            epoch = self._progress.epoch
            self._reported = {}
            yield epoch
            self._end_epoch(epoch)

    def batches(self) -> Iterator[Any]:
        """The rest of the epoch in micro-batches, on `job.device`."""
        progress = self._progress
        for portion, micro in self._loader.steps(self._division, progress.epoch, progress.offset):
            self._step = _Step(portion)
            for data in micro:
                self._step.index += 1
                yield to_device(data, self.device)
            if self._step is not None:
                self._update(None)  # the script left out `job.step`: its samples are spent
        self._step = None

    def step(self, loss: Tensor, *, clip: float | None = None, weight: float | None = None) -> bool:
        """Backward; with the last micro-batch also all-reduce, clip, optimizer step, zero_grad.

        `weight`: valid targets in this micro-batch, where the loss ignores some; give it
        in every step or in none. True: the parameters were updated.
        """
        step = self._step
        if step is None or step.index < 0:
            raise UserError("job.step belongs into `for ... in job.batches()`, once for each batch")
        count = step.portion.micro[step.index]
        due = float(count if weight is None else weight)
        step.weighted = step.weighted or weight is not None
        step.weight += due
        if due > 0.0:
            step.loss = step.loss + loss.detach() * due
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

    # inside

    def _backward(self, loss: Tensor) -> None:
        scaled = loss if self.scaler is None else self.scaler.scale(loss)
        torch.autograd.backward(scaled)

    def _update(self, clip: float | None) -> bool:
        step, progress = self._step, self._progress
        assert step is not None
        self._step = None
        updated = step.weight > 0.0
        if updated:
            if step.weighted and step.weight != step.portion.count:
                self._multiply_gradients(step.portion.count / step.weight)
            self._apply(clip)
        self.optimizer.zero_grad(set_to_none=True)
        loss = float(step.loss)
        if progress.first_loss is None and updated:
            progress.first_loss = loss / step.weight
        progress.sums.steps += 1
        progress.sums.samples += step.portion.total
        progress.sums.loss += loss
        progress.sums.weight += step.weight
        progress.step += 1
        progress.offset = step.portion.end
        self._advance_schedule(step.portion.total)
        return updated

    def _apply(self, clip: float | None) -> None:
        if self.scaler is not None and clip is not None:
            self.scaler.unscale_(self.optimizer)
        if clip is not None:
            nn.utils.clip_grad_norm_(self._parameters(), clip)
        with self._rate.applied(self.optimizer, self._progress.step):
            if self.scaler is None:
                self.optimizer.step()
            else:
                self.scaler.step(self.optimizer)
                self.scaler.update()

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def _multiply_gradients(self, factor: float) -> None:
        gradients = [p.grad for p in self._parameters() if p.grad is not None]
        torch._foreach_mul_(gradients, factor)

    def _advance_schedule(self, samples: int) -> None:
        """A schedule in steps was written for the base batch: larger steps count for more."""
        if self.scheduler is None or self._scheduler_step != "step":
            return
        progress = self._progress
        progress.schedule_credit += samples / self._rate.base_batch
        while progress.schedule_credit >= 1.0 - 1e-9:
            progress.schedule_credit -= 1.0
            self.scheduler.step()

    def _end_epoch(self, epoch: int) -> None:
        progress = self._progress
        progress.end_epoch()
        if self.scheduler is not None and self._scheduler_step == "epoch":
            self.scheduler.step()
        if self._stop is not None:
            progress.track, reason = after_epoch(
                self._stop,
                progress.track,
                loss=progress.last.mean_loss,
                accuracy=self._reported.get("accuracy"),
            )
            self._over = reason is not None


def join(
    model: nn.Module,
    optimizer: Optimizer,
    dataset: Any,
    batch_size: int,
    *,
    scheduler: Any = None,
    scheduler_step: SchedulerStep = "epoch",
    scaler: GradScaler | None = None,
    max_local_batch: int | None = None,
    min_local_batch: int | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    num_workers: int = 0,
    worker_init_fn: Callable[[int], None] | None = None,
    pin_memory: bool = False,
    shuffle: bool = True,
    seed: int = 0,
    lr_rule: str | Rule | None = None,
    lr_ramp_steps: int = 20,
    stop: StopRule | None = None,
) -> Job:
    """Make a training script elastic. Under plain `python`: an ordinary loop on one device.

    The learning rate of `optimizer` is taken as right for `batch_size`; it follows the
    batch by `lr_rule` ("linear" for SGD, "sqrt" for the Adam family, "none", or a
    function of batch/batch_size) and rises over `lr_ramp_steps`. `scheduler` is stepped
    after each epoch, or with `scheduler_step="step"` once per `batch_size` samples: do not
    call it yourself. `max_local_batch` samples fit one device; what exceeds them is
    accumulated. `min_local_batch` is 2 for models with batch norm, which cannot take one.
    """
    _check(model, optimizer, scheduler, scheduler_step)
    for name, value in (
        ("batch_size", batch_size),
        ("max_local_batch", max_local_batch),
        ("min_local_batch", min_local_batch),
    ):
        if value is not None and value < 1:
            raise UserError(f"{name} {value} is not at least 1")
    options = LoaderOptions(
        collate_fn=collate_fn,
        num_workers=num_workers,
        worker_init_fn=worker_init_fn,
        pin_memory=pin_memory,
    )
    loader = Loader(dataset, options, seed=seed, shuffle=shuffle)
    rate = LearningRate(rule_for(optimizer, lr_rule), batch_size, lr_ramp_steps)
    has_norm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
    environment = WorkerEnvironment.from_env(os.environ)
    if environment is not None:
        print("ones.join: elastic workers are not built yet", file=sys.stderr)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    model.to(device)
    return Job(
        model,
        optimizer,
        loader,
        rate,
        scheduler=scheduler,
        scheduler_step=scheduler_step,
        scaler=scaler,
        max_local_batch=max_local_batch,
        minimum=min_local_batch or (2 if has_norm else 1),
        stop=stop,
        device=device,
    )


def _check(model: object, optimizer: object, scheduler: object, scheduler_step: str) -> None:
    if isinstance(optimizer, list | tuple | dict):
        raise UserError("ones.join takes one optimizer; several are not supported")
    if not isinstance(optimizer, Optimizer):
        raise UserError(f"optimizer {type(optimizer).__name__} is not a torch.optim.Optimizer")
    if not isinstance(model, nn.Module):
        raise UserError(f"model {type(model).__name__} is not a torch.nn.Module")
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise UserError(
            f"model is wrapped in {type(model).__name__}: give the plain one, ones.join does that"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UserError("optimizer LBFGS needs a closure, which job.step does not offer")
    own = {id(p) for p in model.parameters()}
    for group in optimizer.param_groups:
        if any(id(p) not in own for p in group["params"]):
            raise UserError("optimizer has parameters that are not the model's")
    if scheduler is not None and getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise UserError("scheduler belongs to another optimizer")
    if scheduler_step not in ("epoch", "step"):
        raise UserError(f"scheduler_step {scheduler_step!r} is not epoch or step")
