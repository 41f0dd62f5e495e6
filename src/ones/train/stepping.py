"""One optimizer step, from its first micro-batch to the update: the same on all workers.

A step that fails because a worker was lost, or does not count because a newcomer was not equal,
leaves nothing behind: its samples come again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ones.errors import UserError
from ones.train.buckets import Notice
from ones.train.crew import Crew
from ones.train.group import GroupLostError
from ones.train.noise import GradientNoise, looks_every, unit_of
from ones.train.norm import synchronise
from ones.train.replica import Replica
from ones.train.sampler import Division, Portion


@dataclass(slots=True)
class _Step:
    """One optimizer step under way."""

    portion: Portion
    division: Division
    index: int = -1  # of the micro-batch that the script has
    weight: float = 0.0  # samples, or valid targets, whose loss has come back
    loss: Tensor | float = 0.0  # sum of weight times mean loss

    @property
    def is_last(self) -> bool:
        return self.index == len(self.portion.micro) - 1


class Stepper:
    def __init__(
        self,
        replica: Replica,
        device: torch.device,
        crew: Crew | None,
        on_stepped: Callable[[Portion], None],
    ) -> None:
        self._replica, self._device, self._crew = replica, device, crew
        self._optimizer, self._progress = replica.optimizer, replica.progress
        self._on_stepped = on_stepped
        self.noise = GradientNoise()
        self._norms = None if crew is None else synchronise(replica.model)
        self._step: _Step | None = None
        self._trained = [p for g in self._optimizer.param_groups for p in g["params"]]
        self._look_every = looks_every(sum(p.numel() for p in self._trained))
        self._unit = unit_of(self._optimizer)
        if crew is not None:
            crew.buckets.unit = self._unit
        self._state = [b for b in replica.model.buffers() if crew is not None]
        self._before: list[Tensor] = []
        self._proven = 0  # the largest micro-batch that went through

    # what the loop does

    def begin(self, portion: Portion, division: Division) -> None:
        self._step = _Step(portion, division)
        if self._state and self._crew is not None and self._crew.group is not None:
            # what forward changes (batch norm) must not count if the step fails
            if not self._before:
                self._before = [b.clone() for b in self._state]
            else:
                torch._foreach_copy_(self._before, self._state)

    def hand_out(self) -> None:
        """The script gets the next micro-batch."""
        step = self._step
        assert step is not None
        step.index += 1
        if self._norms is not None and self._crew is not None:
            self._norms.weight = step.portion.count / step.portion.total
            is_even = step.division.is_even(step.portion)
            self._norms.group = self._crew.group if is_even else None

    def end(self) -> None:
        """All were handed out. Nothing was for us, or the script left out `job.step`?"""
        if self._step is not None:
            self._update(None)

    def leave(self) -> None:
        self._step = None

    def take(self, loss: Tensor, clip: float | None, weight: float | None) -> bool:
        """The loss of one micro-batch. True: the parameters were updated."""
        step = self._step
        if step is None or step.index < 0:
            raise UserError("job.step belongs into `for ... in job.batches()`, once for each batch")
        if weight is not None:
            self._progress.weighted = True
        due = float(step.portion.micro[step.index] if weight is None else weight)
        if self._norms is not None:
            if due == 0.0 and self._norms.group is not None:
                raise UserError("job.step with weight 0 does not go with SyncBatchNorm layers")
            self._norms.group = None  # until the next batch: evaluation is each worker's own
        if due > 0.0:
            step.weight += due
            # on the CPU a number costs less than a tensor; on a GPU it would wait for the device
            step.loss = step.loss + (loss.item() if loss.is_cpu else loss.detach()) * due
            if step.is_last:
                self._arm(step)
            part = due / step.portion.count
            self._backward(loss if part == 1.0 else loss * part)
        if not step.is_last:
            return False
        return self._update(clip)

    def memory_limit(self) -> int | None:
        """What to believe after memory ran out in the present step."""
        step = self._step
        if step is None or step.index < 0:
            return None
        tried = step.portion.micro[step.index]
        return max(1, tried // 2, min(self._proven, tried - 1))

    # backward and reduction

    def _backward(self, loss: Tensor) -> None:
        scaler = self._replica.scaler
        torch.autograd.backward(loss if scaler is None else scaler.scale(loss))

    def _arm(self, step: _Step) -> None:
        """From here on gradients go to the others as backward yields them."""
        crew = self._crew
        if crew is None or crew.buckets.armed:
            return
        group = crew.sums_over
        if group is None:
            return
        crew.handover.buffers_are_needed()
        if crew.group is None:
            crew.buckets.arm(group, 1.0, {}, measure=False)
            return
        notices = crew.notices()
        notices[Notice.LOSS] = step.loss / step.portion.total
        measure = self._progress.step % self._look_every == 0 and self._is_measurable
        weight = step.portion.count / step.portion.total
        crew.buckets.arm(group, weight, notices, measure=measure)
        if self._progress.weighted:
            self._valid = torch.tensor([step.weight], dtype=torch.float64, device=self._device)
            crew.buckets.add_up(self._valid)

    def _reduce(self, step: _Step) -> tuple[float, float] | None:
        """Weight and mean loss of the whole step; gradients are those of the global batch.

        None: the step does not count."""
        crew = self._crew
        self._arm(step)  # where this worker had nothing to send backward
        if crew is None or crew.group is None:
            loss = float(step.loss) / step.weight if step.weight else 0.0
            if crew is not None:
                if crew.buckets.armed:
                    crew.buckets.finish()
                self._look_at_noise(step)
                notices = crew.notices()
                crew.heard([float(notices.get(notice, 0.0)) for notice in Notice])
            return step.weight, loss
        sums = crew.buckets.finish()
        if not crew.heard(sums):
            return None
        weight = float(self._valid) if self._progress.weighted else float(step.portion.total)
        loss = sums[Notice.LOSS] * step.portion.total / weight if weight else 0.0
        if sums[Notice.SQUARE] > 0.0:
            counts = step.division.counts(step.portion)
            self.noise.workers(sums[Notice.SQUARE], counts, crew.buckets.square_of_gradients())
        return weight, loss

    def _look_at_noise(self, step: _Step) -> None:
        at = self._progress.step % (2 * self._look_every)
        if at in (0, 1) and self._is_measurable:
            gradients = [self._measured(p) for p in self._trained if p.grad is not None]
            if at == 0:
                self.noise.keep(gradients)
            else:
                self.noise.compare(gradients, step.portion.count)

    @property
    def _is_measurable(self) -> bool:
        """Adam's unit is known after its first step."""
        return self._unit is None or bool(self._optimizer.state)

    def _measured(self, p: Tensor) -> Tensor:
        assert p.grad is not None
        return p.grad if self._unit is None else p.grad / self._unit(p)

    # the update

    def _update(self, clip: float | None) -> bool:
        step = self._step
        assert step is not None
        self._step = None
        try:
            reduced = self._reduce(step)
        except GroupLostError:
            reduced = None
            assert self._crew is not None
            self._crew.lost()
        if reduced is None:
            self._undo()
            return False
        weight, loss = reduced
        if weight > 0.0:
            if self._progress.weighted and weight != step.portion.total:
                self._multiply_gradients(step.portion.total / weight)
            self._apply(clip)
        self._optimizer.zero_grad(set_to_none=True)
        self._count(step.portion, weight, loss)
        return weight > 0.0

    def _apply(self, clip: float | None) -> None:
        optimizer, scaler, crew = self._optimizer, self._replica.scaler, self._crew
        is_watched = crew is not None and crew.handover.is_going_on
        if scaler is not None and (clip is not None or is_watched):
            scaler.unscale_(optimizer)
        if clip is not None:
            nn.utils.clip_grad_norm_(self._trained, clip)
        with self._replica.rate.applied(optimizer, self._progress.step):
            if crew is not None:
                crew.handover.before_update(happens=not (is_watched and self._is_infinite()))
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            if crew is not None:
                crew.handover.after_update()

    def _is_infinite(self) -> bool:
        """Will the scaler skip the update? Gradients are unscaled."""
        scaler = self._replica.scaler
        if scaler is None:
            return False
        found = scaler._found_inf_per_device(self._optimizer)
        return any(float(value) > 0.0 for value in found.values())

    def _multiply_gradients(self, factor: float) -> None:
        gradients = [p.grad for p in self._trained if p.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, factor)

    def _count(self, portion: Portion, weight: float, loss: float) -> None:
        progress = self._progress
        if progress.first_loss is None and weight > 0.0:
            progress.first_loss = loss
        progress.sums.steps += 1
        progress.sums.samples += portion.total
        progress.sums.loss += loss * weight
        progress.sums.weight += weight
        self._proven = max(self._proven, *portion.micro, 0)
        progress.step += 1
        progress.offset = portion.end
        self._on_stepped(portion)

    def _undo(self) -> None:
        """As if the step had not begun. Its samples come again."""
        self._optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            if self._before:
                torch._foreach_copy_(self._state, self._before)
