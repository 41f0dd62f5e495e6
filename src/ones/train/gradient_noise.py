"""The gradient noise scale, in samples: the batch up to which larger batches pay off.

McCandlish et al., arXiv 1812.06162, appendix A: with S the trace of the covariance of one
sample's gradient and G the true gradient, a mean over n samples has E|g|² = |G|² + S/n. Two
sizes give two equations. Here: the workers' own gradients and their mean, or, with one worker, the
gradients of two consecutive steps (their product estimates |G|²; slightly biased, as the parameters
have changed). What matters is the noise of the updates: for Adam, gradients are divided by the root
of their second moment (preconditioned), as in Pollux (OSDI 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

_BLOCK = 1 << 16  # numbers: float32 sums over more lose digits


def measure_interval(parameters: int) -> int:
    """Steps between two measurements: each reads all gradients twice or more."""
    return 10 if parameters < 1_000_000 else 40


def preconditioner_of(optimizer: Optimizer) -> Callable[[Tensor], Tensor] | None:
    """The divisor of a parameter's gradient in the optimizer's update; None: no divisor."""
    if not isinstance(optimizer, Adam | AdamW):
        return None
    groups = {p: group for group in optimizer.param_groups for p in group["params"]}

    def preconditioner(p: Tensor) -> Tensor:
        state = optimizer.state.get(p)
        if not state:  # not used yet, or not the optimizer's
            return torch.ones((), dtype=p.dtype, device=p.device)
        group = groups[p]
        bias = 1.0 - group["betas"][1] ** float(state["step"])
        root: Tensor = (state["exp_avg_sq"] / bias).sqrt_().add_(group["eps"])
        return root

    return preconditioner


class GradientNoise:
    """A running estimate; `memory` is the weight of earlier measurements."""

    def __init__(self, memory: float = 0.95) -> None:
        self._memory = memory
        self._spread = self._square = 0.0  # S and |G|², smoothed separately: their ratio is biased
        self._weight = 0.0
        self._previous: list[Tensor] | None = None
        self._versions: list[int] = []
        self._must_copy = False

    @property
    def scale(self) -> float | None:
        """S / |G|² in samples; None before there is a usable estimate."""
        if self._weight == 0.0 or self._square <= 0.0 or self._spread <= 0.0:
            return None
        return self._spread / self._square

    def add_workers(self, squares: float, counts: Sequence[int], reduced: float) -> None:
        """Adds a measurement over several workers.

        `squares`: sum of |g_i|² over the workers that had samples; `reduced`: |mean|².
        """
        counts = [n for n in counts if n]
        total = sum(counts)
        if len(counts) < 2:
            return
        local = squares / len(counts)
        inverse = sum(1.0 / n for n in counts) / len(counts)
        spread = (local - reduced) / (inverse - 1.0 / total)
        self._add(spread, reduced - spread / total)

    def keep(self, gradients: Sequence[Tensor]) -> None:
        """Keeps the gradients of one step, to `compare` them with those of the next.

        They are copied only if the script was seen to change them in place, as clipping does.
        """
        self._previous = [g.detach().clone() if self._must_copy else g for g in gradients]
        self._versions = [g._version for g in self._previous]

    def compare(self, gradients: Sequence[Tensor], count: int) -> None:
        previous, self._previous = self._previous, None
        if previous is None or len(previous) != len(gradients):
            return
        if [g._version for g in previous] != self._versions:
            self._must_copy = True
            return
        product = square = 0.0
        for old, new in zip(previous, gradients, strict=True):
            product += _inner(old, new)
            square += (_inner(old, old) + _inner(new, new)) / 2.0
        self._add((square - product) * count, product)

    def _add(self, spread: float, square: float) -> None:
        if not (abs(spread) < float("inf") and abs(square) < float("inf")):
            return
        keep = self._memory
        self._spread = keep * self._spread + (1 - keep) * spread
        self._square = keep * self._square + (1 - keep) * square
        self._weight = keep * self._weight + (1 - keep)


def _inner(a: Tensor, b: Tensor) -> float:
    if not a.is_cpu or a.dtype not in (torch.float32, torch.float64):
        return float(torch.sum(a.double() * b.double()))
    blocks = zip(
        torch.split(a.reshape(-1), _BLOCK), torch.split(b.reshape(-1), _BLOCK), strict=True
    )
    return sum(float(torch.dot(x, y)) for x, y in blocks)
