"""Scaling of the learning rate with the batch, independent of the user's schedule.

The schedule's value is multiplied for one optimizer step and then restored, so schedulers that
build on the current value (most do) never see the factor. torch.optim.SGD keeps the rate outside
its momentum buffer and Adam has none in its state: a change of the rate needs no correction of
momentum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch.optim import Optimizer

from ones.errors import InvalidSettingError

Rule = Callable[[float], float]  # batch / base batch -> factor on the learning rate

RULES: dict[str, Rule] = {
    "linear": lambda ratio: ratio,  # Goyal et al., arXiv 1706.02677
    "sqrt": math.sqrt,  # Adam: Malladi et al., arXiv 2205.10287
    "none": lambda ratio: 1.0,
}


def optimizer_name(optimizer: Optimizer) -> str:
    """sgd, adam, adamw, ...; also reported to the controller."""
    return type(optimizer).__name__.lower()


def rule_for(optimizer: Optimizer, wanted: str | Rule | None) -> Rule:
    if callable(wanted):
        return wanted
    name = wanted or ("linear" if optimizer_name(optimizer) == "sgd" else "sqrt")
    if name not in RULES:
        raise InvalidSettingError(
            f"lr_rule {name!r} is not one of {', '.join(RULES)}, nor a function of batch/base batch"
        )
    return RULES[name]


@dataclass(slots=True)
class LearningRate:
    """The factor of each step. It rises over `ramp_steps` steps and falls at once."""

    rule: Rule
    base_batch: int
    ramp_steps: int = 0
    start: float = 1.0  # factor at which the ramp began
    target: float = 1.0
    since: int = 0  # step of the last change

    def set_batch(self, batch: int, step: int) -> None:
        target = float(self.rule(batch / self.base_batch))
        if not (math.isfinite(target) and target > 0.0):
            raise InvalidSettingError(
                f"lr_rule returns {target} for batch {batch}, base batch {self.base_batch}:"
                " it must return a number above 0"
            )
        if target != self.target:
            self.start, self.target, self.since = self.factor(step), target, step

    def factor(self, step: int) -> float:
        done = step - self.since
        if self.target <= self.start or done >= self.ramp_steps:
            return self.target
        return self.start + (self.target - self.start) * (done + 1) / (self.ramp_steps + 1)

    def state(self) -> dict[str, float]:
        return {"start": self.start, "target": self.target, "since": self.since}

    def load(self, state: dict[str, float]) -> None:
        self.start, self.target = state["start"], state["target"]
        self.since = int(state["since"])

    @contextmanager
    def applied(self, optimizer: Optimizer, step: int) -> Iterator[None]:
        """Multiplies the optimizer's learning rates within."""
        factor = self.factor(step)
        if factor == 1.0:
            yield
            return
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * factor
        try:
            yield
        finally:
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
