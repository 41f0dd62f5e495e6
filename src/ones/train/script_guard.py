"""Refuses calls of a script that would make its workers differ: its own backward or update.

torch's own hooks tell of them, so that the error is raised in the line that must change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ones.errors import UserError

_WATCHED = 4  # parameters of each optimizer with a hook: each costs a microsecond in backward


class _Allowed:
    """A context manager, entered in every step: a generator would cost some microseconds more."""

    def __init__(self) -> None:
        self.depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


class ScriptGuard:
    """Watches the optimizers of a job, and others while the script is in the loop over batches."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = set(map(id, optimizers))
        self._parameters = {
            id(p) for opt in optimizers for group in opt.param_groups for p in group["params"]
        }
        self._allowed = _Allowed()
        self._hook: Any = None  # while the script is in the loop over batches
        for optimizer in optimizers:
            trained = [
                p for group in optimizer.param_groups for p in group["params"] if p.requires_grad
            ]
            for p in trained[:: max(1, -(-len(trained) // _WATCHED))]:
                p.register_post_accumulate_grad_hook(self._after_gradient)

    def enter_loop(self) -> None:
        if self._hook is None:
            self._hook = register_optimizer_step_pre_hook(self._before_step)

    def leave_loop(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def allowed(self) -> _Allowed:
        """Within, the library itself computes gradients and updates parameters."""
        return self._allowed

    def _after_gradient(self, _: Tensor) -> None:
        if self._hook is not None and not self._allowed.depth:
            raise UserError(
                "the script calls backward() itself: call job.step(loss), or job.backward(loss)"
                " and job.update(), so that the gradients are those of all workers"
            )

    def _before_step(self, optimizer: Optimizer, *_: object) -> None:
        if self._allowed.depth:
            return
        name = type(optimizer).__name__
        if id(optimizer) in self._optimizers:
            raise UserError(
                f"the script calls {name}.step() itself: remove it, job.step(loss) or job.update()"
                " updates the parameters"
            )
        if any(id(p) in self._parameters for g in optimizer.param_groups for p in g["params"]):
            raise UserError(
                f"a second optimizer ({name}) updates parameters of the first one: give ones.join"
                " one optimizer with parameter groups"
            )
        raise UserError(
            f"{name} is not an optimizer of the job, so its parameters would differ between"
            " workers: give ones.join all models and optimizers, as"
            " ones.join([model_a, model_b], [optimizer_a, optimizer_b], ...)"
        )
