"""Several optimizers as one, for state transfer and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer


class OptimizerSet:
    """Has what a replica needs of an optimizer."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = list(optimizers)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> dict[Any, Any]:
        return {p: s for optimizer in self.optimizers for p, s in optimizer.state.items()}

    def state_dict(self) -> dict[str, Any]:
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        for state in states:  # in one order in all workers
            state["state"] = dict(sorted(state["state"].items()))
        return {"state": {}, "each": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for optimizer, own in zip(self.optimizers, state["each"], strict=True):
            optimizer.load_state_dict(own)

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)


def optimizers_of(optimizer: Any) -> list[Optimizer]:
    return optimizer.optimizers if isinstance(optimizer, OptimizerSet) else [optimizer]
