"""Jobs with several models and optimizers, such as GANs: each is updated on its own.

The script calls `job.backward(loss)` and `job.update(optimizer)` in any order, the same on all
workers. An update reduces the gradients of its optimizer. The workers first agree on which one it
is. A step counts with its first update. If a worker dies between two updates of a step, the rest of
that step is left out. Batches are not divided into micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ones.errors import UserError
from ones.train.buckets import Buckets, Notice
from ones.train.elastic_group import ElasticGroup
from ones.train.optimizer_set import optimizers_of
from ones.train.optimizer_step import OptimizerStepper, Step
from ones.train.process_group import GroupLostError
from ones.train.replica import Replica
from ones.train.sampler import BatchPartition, StepSlice
from ones.train.script_guard import ScriptGuard


class SeveralStepper(OptimizerStepper):
    """The step of a job with several optimizers."""

    def __init__(
        self,
        replica: Replica,
        device: torch.device,
        elastic: ElasticGroup | None,
        after_step: Callable[[StepSlice, float], None],
        guard: ScriptGuard,
    ) -> None:
        super().__init__(replica, device, elastic, after_step, guard)
        self._optimizers = optimizers_of(replica.optimizer)
        self._parameters = [
            [p for group in optimizer.param_groups for p in group["params"]]
            for optimizer in self._optimizers
        ]
        self._buckets = [] if elastic is None else [Buckets(ps) for ps in self._parameters]
        self._first_step = 0  # of the step under way: its updates have one learning rate

    def begin(self, part: StepSlice, partition: BatchPartition) -> bool:
        self._zero_grad()  # gradients of one model's loss in another model do not stay
        self._first_step = self._progress.step
        return super().begin(part, partition)

    def end(self) -> None:
        step, self._step = self._step, None
        if step is None or step.is_over:
            return
        self._check_trained(step)
        if step.reduced is None:  # skipped
            self._count(step.part, 0.0, 0.0)

    def backward(
        self,
        loss: Tensor,
        weight: float | None,
        call: str = "job.backward",
        *,
        retain_graph: bool = False,
        scale: float = 1.0,
    ) -> bool:
        step = self._current(call)
        if call == "job.step":
            raise UserError(
                "the job has several optimizers: call job.backward(loss) and job.update(optimizer)"
            )
        if weight is not None:
            raise UserError("weight= is not supported with several optimizers")
        step.losses += 1
        if step.is_over or step.part.is_filler:
            return not step.is_over
        step.loss = step.loss + (loss.item() if loss.is_cpu else loss.detach())
        scaler = self._replica.scaler
        scaled = loss if scale == 1.0 else loss * scale
        with self._guard.allowed():
            torch.autograd.backward(
                scaled if scaler is None else scaler.scale(scaled), retain_graph=retain_graph
            )
        return True

    def update(self, clip: float | None, optimizer: Optimizer | None = None) -> bool:
        step = self._current("job.update")
        index = self._index_of(optimizer)
        if step.is_over:
            return False
        if not step.losses:
            raise UserError("job.update was called without job.backward for this batch")
        if not self.agree(index + 1) or not self._reduce_one(step, index):
            step.is_over = True
            self._undo_update(step)
            return False
        with self._guard.allowed():
            self._update_one(index, clip)
        self._optimizers[index].zero_grad(set_to_none=True)
        if not step.is_counted:
            step.is_counted = True
            assert step.reduced is not None
            self._count(step.part, *step.reduced)
        return True

    def _check_trained(self, step: Step) -> None:
        if step.index < 0 or step.is_over or step.is_skipped or step.is_counted:
            return
        raise UserError(
            f"step {self._progress.step} has no update: call job.backward(loss) and"
            " job.update(optimizer) for each batch, or job.skip()"
        )

    @property
    def is_updated(self) -> bool:
        return self._step is not None and self._step.is_counted

    def _index_of(self, optimizer: Optimizer | None) -> int:
        for index, own in enumerate(self._optimizers):
            if own is optimizer:
                return index
        if optimizer is None:
            raise UserError("the job has several optimizers: call job.update(optimizer)")
        raise UserError(f"{type(optimizer).__name__} is not an optimizer of the job")

    def _reduce_one(self, step: Step, index: int) -> bool:
        """Sums the gradients of one optimizer over all workers."""
        elastic, part = self._elastic, step.part
        loss = float(step.loss) * part.count / part.total
        if elastic is None:
            step.reduced = step.reduced or (float(part.total), loss)
            return True
        notices = elastic.notices() | {Notice.LOSS: loss}
        if elastic.group is None:
            elastic.handle_notices([float(notices.get(notice, 0.0)) for notice in Notice])
            step.reduced = step.reduced or (float(part.total), loss)
            return True
        try:
            buckets = self._buckets[index]
            buckets.arm(elastic.group, part.count / part.total, notices, measure=False)
            assert self.own_steps is not None
            self.own_steps.wait_begins()
            sums = buckets.finish()
            self.own_steps.wait_ends(part.count)
        except GroupLostError:
            elastic.step_failed()
            return False
        if not elastic.handle_notices(sums):
            return False
        step.reduced = step.reduced or (float(part.total), sums[Notice.LOSS])
        return True

    def _update_one(self, index: int, clip: float | None) -> None:
        optimizer, scaler, elastic = self._optimizers[index], self._replica.scaler, self._elastic
        if clip is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(self._parameters[index], clip)
        with self._replica.rate.applied(optimizer, self._first_step):
            if elastic is not None:
                elastic.transfer.before_update(happens=True)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            if elastic is not None:
                elastic.transfer.after_update()

    def _undo_update(self, step: Step) -> None:
        if step.is_counted:
            self._zero_grad()  # earlier updates of the step stay
        else:
            self._undo()
