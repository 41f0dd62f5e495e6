"""One optimizer step, from its first micro-batch to the update, the same on all workers.

A step is undone, and its samples are used again, if a worker was lost or the state of a joining
worker differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from ones.errors import UserError
from ones.train import logs
from ones.train.buckets import Notice
from ones.train.elastic_group import ElasticGroup
from ones.train.gradient_noise import (
    GradientNoise,
    first_values,
    measure_interval,
    preconditioner_of,
    sample_sizes,
)
from ones.train.memory import free_memory, is_out_of_memory
from ones.train.own_steps import OwnStepTimer
from ones.train.process_group import GroupLostError
from ones.train.replica import Replica
from ones.train.sampler import BatchPartition, StepSlice
from ones.train.script_guard import ScriptGuard
from ones.train.sync_batch_norm import convert_sync_layers

_log = logs.logger(__name__)


@dataclass(slots=True)
class Step:
    """The optimizer step under way."""

    part: StepSlice
    partition: BatchPartition
    index: int = -1  # of the micro-batch that the script has
    losses: int = 0  # of this micro-batch, so far
    weight: float = 0.0  # samples, or valid targets, of the micro-batches so far
    loss: Tensor | float = 0.0  # sum of weight times mean loss
    factor: float = 1.0  # that the reduced gradients were multiplied by
    reduced: tuple[float, float] | None = None  # weight and mean loss of the whole step
    is_skipped: bool = False  # the script does not train on this micro-batch
    is_counted: bool = False  # of several optimizers, the first was updated
    is_over: bool = False  # the parameters were updated, or the step was undone

    @property
    def is_last(self) -> bool:
        return self.index >= len(self.part.micro_batches) - 1


class OptimizerStepper:
    """Accumulates the micro-batches of a step, reduces the gradients, and updates the model."""

    def __init__(
        self,
        replica: Replica,
        device: torch.device,
        elastic: ElasticGroup | None,
        after_step: Callable[[StepSlice, float], None],
        guard: ScriptGuard,
    ) -> None:
        self._replica, self._device, self._elastic = replica, device, elastic
        self._optimizer, self._progress = replica.optimizer, replica.progress
        self._after_step = after_step
        self._guard = guard
        self.noise = GradientNoise()
        self.own_steps = None if elastic is None else OwnStepTimer(device, elastic.context.run_dir)
        self._batch_norm = None if elastic is None else convert_sync_layers(replica.model)
        self._step: Step | None = None
        self._clip: float | None = None  # of the last update
        self._trained = [p for g in self._optimizer.param_groups for p in g["params"]]
        zero_grad = getattr(self._optimizer.zero_grad, "__func__", None)
        self._has_own_zero_grad = zero_grad is not Optimizer.zero_grad
        self._measure_interval = measure_interval(sum(p.numel() for p in self._trained))
        self._sampled = sample_sizes(self._trained)
        self._preconditioner = preconditioner_of(self._optimizer)
        if elastic is not None:
            elastic.buckets.preconditioner = self._preconditioner
        self._buffers = [b for b in replica.model.buffers() if elastic is not None]
        self._buffers_before: list[Tensor] = []
        self._largest = 0  # micro-batch that did not run out of memory

    # for the training loop

    def begin(self, part: StepSlice, partition: BatchPartition) -> bool:
        """False: another worker has left the loop, or was lost."""
        # synchronised layers reduce in forward: a worker that leaves must tell before
        if self._batch_norm is not None and not self.agree():
            return False
        self._step = Step(part, partition)
        if self._buffers and self._elastic is not None and self._elastic.group is not None:
            # forward changes buffers (batch norm), which a failed step must undo
            if not self._buffers_before:
                self._buffers_before = [b.clone() for b in self._buffers]
            else:
                torch._foreach_copy_(self._buffers_before, self._buffers)
        return True

    def next_micro_batch(self) -> bool:
        """Call before the script gets the next micro-batch; False if the step was undone."""
        step = self._step
        assert step is not None
        self._check_trained(step)
        if step.is_over:
            return False
        step.index += 1
        step.losses, step.is_skipped = 0, False
        if self._batch_norm is not None and self._elastic is not None:
            self._batch_norm.weight = step.part.count / step.part.total
            is_even = step.partition.is_even(step.part)
            self._batch_norm.group = self._elastic.group if is_even else None
        return True

    def end(self) -> None:
        """Completes a step of which the script skipped the end."""
        step, self._step = self._step, None
        if step is None or step.is_over:
            return
        self._check_trained(step)
        if step.reduced is not None:  # skipped after `backward`: the gradients are dropped
            self._zero_grad()
            self._count(step.part, *step.reduced)
        elif self._reduce(step):
            self._apply(step, self._clip)

    def cancel(self) -> None:
        """Drops the step under way: the script has left the loop, or the job ends."""
        self._step = None
        self._zero_grad()

    def skip(self) -> None:
        """The script does not train on this micro-batch."""
        self._current("job.skip").is_skipped = True

    def announce(self, notice: Notice, *, is_agreeing: bool) -> bool:
        """Takes part in the next step of the other workers, without samples, to end their loops.

        `is_agreeing`: they call `agree` before that step. False: a worker was lost; try again when
        the survivors have formed a group.
        """
        elastic = self._elastic
        if elastic is None or elastic.group is None:
            return True
        if self._batch_norm is not None or is_agreeing:
            self.agree(-1 - (notice is Notice.STOP))
            return not elastic.has_lost
        self._zero_grad()
        elastic.transfer.wait_until_sent()
        elastic.buckets.arm(elastic.group, 0.0, elastic.end_notices(notice), measure=False)
        try:
            elastic.handle_notices(elastic.buckets.finish())
        except GroupLostError:
            elastic.step_failed()
            return False
        finally:
            self._zero_grad()
        return True

    def agree(self, code: int = 0) -> bool:
        """Whether all workers have this code. Below 0 a worker leaves its loop: -1 over batches,
        -2 over epochs."""
        elastic = self._elastic
        if elastic is None or elastic.group is None:
            return True
        try:
            codes = elastic.group.all_gather(code)
        except GroupLostError:
            elastic.step_failed()
            return False
        if min(codes) < 0:
            elastic.leave_loops(is_stop=min(codes) == -2)
            return False
        if len(set(codes)) > 1:
            raise UserError(
                "the workers of this job update different optimizers at one time: the order of"
                " job.update(optimizer) must be the same in all workers"
            )
        return True

    @property
    def is_accumulating(self) -> bool:
        """Whether more micro-batches of the step follow."""
        return not self._current("job.accumulate").is_last

    @property
    def micro_batch(self) -> int:
        """Samples of the current micro-batch; 0 if it does not count."""
        step = self._current("job.step")
        return 0 if step.part.is_filler else step.part.micro_batches[step.index]

    @property
    def is_filler(self) -> bool:
        return self._step is not None and self._step.part.is_filler

    @property
    def is_updated(self) -> bool:
        """Whether the script has made the update of a step, and has no other batch yet."""
        step = self._step
        return step is not None and step.is_over and step.reduced is not None

    def backward(
        self,
        loss: Tensor,
        weight: float | None,
        call: str = "job.backward",
        *,
        retain_graph: bool = False,
        scale: float = 1.0,
    ) -> bool:
        """Adds the gradients of a loss; True if they are complete: those of all workers.

        `scale` multiplies the gradients, and not the loss that is reported.
        """
        step = self._current(call)
        if step.is_over:
            if step.reduced is not None:
                raise UserError(f"{call} was called twice for the same batch, or after job.update")
            return False
        step.losses += 1
        if weight is not None:
            self._progress.weighted = True
        if step.part.is_filler:
            count = 0.0
        else:
            count = float(step.part.micro_batches[step.index] if weight is None else weight)
        if self._batch_norm is not None:
            if count == 0.0 and self._batch_norm.group is not None and not step.part.is_filler:
                raise UserError("job.step(weight=0) is not supported with SyncBatchNorm layers")
            self._batch_norm.group = None  # until the next batch: evaluation is not synchronised
        if count > 0.0:
            if step.losses == 1:
                step.weight += count
            # on the CPU a number costs less than a tensor; on a GPU it would wait for the device
            step.loss = step.loss + (loss.item() if loss.is_cpu else loss.detach()) * count
            if step.is_last:
                self._arm(step)
            # several losses of a batch: the first were reduced, and maybe multiplied, before
            share = count / step.part.count * step.factor * scale
            scaled = loss if share == 1.0 else loss * share
            scaler = self._replica.scaler
            try:
                with self._guard.allowed():
                    torch.autograd.backward(
                        scaled if scaler is None else scaler.scale(scaled),
                        retain_graph=retain_graph,
                    )
            except Exception as error:
                if not is_out_of_memory(error) or not self._learn_limit(step):
                    raise
                return False
        return step.is_last and self._reduce(step)

    def update(self, clip: float | None, optimizer: Optimizer | None = None) -> bool:
        """Updates the parameters if the gradients are complete; returns whether it did."""
        step = self._current("job.update")
        if optimizer not in (None, self._optimizer):
            raise UserError(f"{type(optimizer).__name__} is not the optimizer of the job")
        if step.is_over:
            if step.reduced is not None:
                raise UserError("job.update was called twice for the same batch")
            return False
        if not step.losses:
            raise UserError("job.update was called without job.backward for this batch")
        if not step.is_last:
            return False
        return self._apply(step, clip)

    def _current(self, call: str) -> Step:
        step = self._step
        if step is None or step.index < 0:
            raise UserError(f"call {call} once for each batch, in `for ... in job.batches()`")
        return step

    def _check_trained(self, step: Step) -> None:
        """Refuses a batch that the script took and did not train on."""
        if step.index < 0 or step.is_over or step.is_skipped:
            return
        if not step.losses:
            raise UserError(
                f"batch {step.index + 1} of step {self._progress.step} was not trained on: call"
                " job.step(loss) for each batch, or job.skip()"
            )
        if step.is_last and step.reduced is not None:
            raise UserError(
                f"step {self._progress.step} has gradients and no update: call job.update() after"
                " job.backward(loss), or job.skip()"
            )

    def memory_limit(self) -> int | None:
        """The samples that fit, estimated after memory ran out in the current step."""
        step = self._step
        if step is None or step.index < 0 or step.part.is_filler:
            return None
        tried = step.part.micro_batches[step.index]
        return max(1, tried // 2, min(self._largest, tried - 1))

    def _learn_limit(self, step: Step) -> bool:
        """After memory ran out in backward: undoes the step, which is made again in smaller parts.

        False: there is no smaller part, or no group that could make the step again.
        """
        elastic, limit = self._elastic, self.memory_limit()
        tried = step.part.micro_batches[step.index]
        if elastic is None or limit is None or limit >= tried:
            return False
        _log.warning("memory ran out with %d samples: from here on at most %d", tried, limit)
        step.is_over, step.reduced = True, None
        elastic.buckets.cancel()
        elastic.step_failed()
        self._undo()
        free_memory(self._device)
        elastic.context.learn_memory_limit(limit)
        return True

    # reduction

    def _arm(self, step: Step) -> None:
        """Reduces gradients from here on, as backward computes them."""
        elastic = self._elastic
        if elastic is None or elastic.buckets.armed:
            return
        group = elastic.reduce_group
        if group is None:
            return
        elastic.transfer.wait_until_sent()
        if elastic.group is None:
            elastic.buckets.arm(group, 1.0, {}, measure=False)
            return
        notices = elastic.notices()
        notices[Notice.LOSS] = step.loss / step.part.total
        notices[Notice.WEIGHT] = step.weight
        measure = self._progress.step % self._measure_interval == 0 and self._is_measurable
        weight = step.part.count / step.part.total
        elastic.buckets.arm(group, weight, notices, measure=measure and step.losses <= 1)

    def _reduce(self, step: Step) -> bool:
        """Reduces the gradients; False: the step does not count and is undone."""
        try:
            reduced = self._reduce_gradients(step)
        except GroupLostError:
            reduced = None
            assert self._elastic is not None
            self._elastic.step_failed()
        if reduced is None:
            step.is_over, step.reduced = True, None
            self._undo()
            return False
        step.reduced, weight = reduced, reduced[0]
        if weight > 0.0 and self._progress.weighted and step.factor == 1.0:
            step.factor = step.part.total / weight
            if step.factor != 1.0:
                self._multiply_gradients(step.factor)
        return True

    def _reduce_gradients(self, step: Step) -> tuple[float, float] | None:
        """Returns weight and mean loss of the whole step; None: it does not count."""
        elastic = self._elastic
        self._arm(step)  # if this worker had no backward
        if elastic is None or elastic.group is None:
            loss = float(step.loss) / step.weight if step.weight else 0.0
            if elastic is not None:
                if elastic.buckets.armed:
                    elastic.buckets.finish()
                self._measure_noise(step)
                notices = elastic.notices()
                elastic.handle_notices([float(notices.get(notice, 0.0)) for notice in Notice])
            return step.weight, loss
        assert self.own_steps is not None
        self.own_steps.wait_begins()
        sums = elastic.buckets.finish()
        self.own_steps.wait_ends(step.part.count)
        if not elastic.handle_notices(sums):
            return None
        weight = sums[Notice.WEIGHT] if self._progress.weighted else float(step.part.total)
        loss = sums[Notice.LOSS] * step.part.total / weight if weight else 0.0
        if sums[Notice.SQUARE] > 0.0:
            counts = step.partition.counts(step.part)
            mean_square = elastic.buckets.squared_norm()
            self.noise.add_workers(sums[Notice.SQUARE], counts, mean_square)
        return weight, loss

    def _measure_noise(self, step: Step) -> None:
        """Compares the gradients of two consecutive steps of a single worker."""
        index = self._progress.step % (2 * self._measure_interval)
        if index in (0, 1) and self._is_measurable:
            gradients = [
                self._measured(p, n)
                for p, n in zip(self._trained, self._sampled, strict=True)
                if p.grad is not None and not p.grad.is_sparse
            ]
            if index == 0:
                self.noise.keep(gradients)
            else:
                self.noise.compare(gradients, step.part.count)

    @property
    def _is_measurable(self) -> bool:
        """Whether noise can be measured: Adam's preconditioner exists after its first step."""
        return self._preconditioner is None or bool(self._optimizer.state)

    def _measured(self, p: Tensor, count: int) -> Tensor:
        assert p.grad is not None
        values = first_values(p.grad, count)
        return values if self._preconditioner is None else values / self._preconditioner(p, count)

    # the update

    def _apply(self, step: Step, clip: float | None) -> bool:
        assert step.reduced is not None
        weight, loss = step.reduced
        self._clip = clip
        if weight > 0.0:
            with self._guard.allowed():
                self._update_parameters(clip)
        self._zero_grad()
        step.is_over = True
        if step.part.is_filler and self._buffers_before:
            torch._foreach_copy_(self._buffers, self._buffers_before)  # its samples do not count
        self._count(step.part, weight, loss)
        return weight > 0.0

    def _update_parameters(self, clip: float | None) -> None:
        optimizer, scaler, elastic = self._optimizer, self._replica.scaler, self._elastic
        is_sending = elastic is not None and elastic.transfer.is_active
        if scaler is not None and (clip is not None or is_sending):
            self._unscale(scaler)
        if clip is not None:
            nn.utils.clip_grad_norm_(self._trained, clip)
        with self._replica.rate.applied(optimizer, self._progress.step):
            if elastic is not None:
                elastic.transfer.before_update(happens=not (is_sending and self._is_infinite()))
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            if elastic is not None:
                elastic.transfer.after_update()

    def _unscale(self, scaler: GradScaler) -> None:
        """Divides the gradients by the scale, unless the script has done so, to clip them."""
        if not scaler._per_optimizer_states[id(self._optimizer)]["found_inf_per_device"]:
            scaler.unscale_(self._optimizer)

    def _zero_grad(self) -> None:
        if self._has_own_zero_grad:
            self._optimizer.zero_grad(set_to_none=True)
            return
        for group in self._optimizer.param_groups:  # as zero_grad, which takes ten times as long
            for p in group["params"]:
                p.grad = None

    def _is_infinite(self) -> bool:
        """Whether the scaler will skip the update. Gradients are unscaled."""
        scaler = self._replica.scaler
        if scaler is None:
            return False
        found = scaler._found_inf_per_device(self._optimizer)
        return any(float(value) > 0.0 for value in found.values())

    def _multiply_gradients(self, factor: float) -> None:
        gradients = [p.grad for p in self._trained if p.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, factor)

    def _count(self, part: StepSlice, weight: float, loss: float) -> None:
        progress = self._progress
        if progress.first_loss is None and weight > 0.0:
            progress.first_loss = loss
        progress.sums.steps += 1
        progress.sums.samples += part.total
        progress.sums.loss += loss * weight
        progress.sums.weight += weight
        if progress.weighted:
            progress.tokens += weight
        self._largest = max(self._largest, *part.micro_batches, 0)
        progress.step += 1
        progress.offset = part.end
        progress.positions = list(part.positions)
        self._after_step(part, loss)

    def _undo(self) -> None:
        """Restores the state before the step."""
        self._zero_grad()
        with torch.no_grad():
            if self._buffers_before:
                torch._foreach_copy_(self._buffers, self._buffers_before)
