"""The gradient noise scale, in samples: the batch up to which larger batches pay off.

McCandlish et al., arXiv 1812.06162, appendix A: with S the trace of the covariance of one
sample's gradient and G the true gradient, a mean over n samples has E|g|² = |G|² + S/n. Two
sizes give two equations. Here: the workers' own gradients and their mean, or, with one worker, the
gradients of two consecutive steps (their product estimates |G|²; slightly biased, as the parameters
have changed). Both are sums over all values of a gradient, so their ratio is estimated from the
same share of each parameter (`sample_sizes`). What matters is the noise of the updates: for Adam,
gradients are divided by the root of their second moment (preconditioned), as in Pollux (OSDI 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

_SAMPLED = 1 << 18  # numbers of a gradient that are measured, of all parameters together

#: parameter, number of values -> the divisor of its first values in the optimizer's update
Preconditioner = Callable[[Tensor, int], Tensor]


def measure_interval(parameters: int) -> int:
    """Steps between two measurements: each reads all gradients twice or more."""
    return 10 if parameters < 1_000_000 else 40


def sample_sizes(parameters: Sequence[Tensor]) -> list[int]:
    """How many values of each parameter are measured: the same share of each, at least one.

    >>> sample_sizes([torch.empty(7), torch.empty(1 << 20, device="meta")])
    [2, 262143]
    """
    share = min(1.0, _SAMPLED / max(1, sum(p.numel() for p in parameters)))
    return [min(p.numel(), ceil(p.numel() * share)) for p in parameters]


def first_values(tensor: Tensor, count: int) -> Tensor:
    return tensor.detach().reshape(-1)[:count]


def preconditioner_of(optimizer: Optimizer) -> Preconditioner | None:
    """The divisor of a parameter's gradient in the optimizer's update; None: no divisor."""
    if not isinstance(optimizer, Adam | AdamW):
        return None
    groups = {p: group for group in optimizer.param_groups for p in group["params"]}

    def preconditioner(p: Tensor, count: int) -> Tensor:
        state = optimizer.state.get(p)
        if not state:  # not used yet, or not the optimizer's
            return torch.ones((), dtype=p.dtype, device=p.device)
        group = groups[p]
        # a tensor: as a number it would have to be read from the device (capturable)
        step = torch.as_tensor(state["step"], dtype=torch.float64)
        bias = 1.0 - torch.pow(group["betas"][1], step)
        root: Tensor = (first_values(state["exp_avg_sq"], count) / bias).sqrt_().add_(group["eps"])
        return root

    return preconditioner


class GradientNoise:
    """A running estimate; `memory` is the weight of earlier measurements."""

    def __init__(self, memory: float = 0.95) -> None:
        self._memory = memory
        self._spread = self._square = 0.0  # S and |G|², smoothed separately: their ratio is biased
        self._weight = 0.0
        self._previous: Tensor | None = None

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
        """Keeps values of the gradient of one step, to `compare` them with those of the next."""
        self._previous = _joined(gradients)

    def compare(self, gradients: Sequence[Tensor], count: int) -> None:
        old, self._previous = self._previous, None
        if old is None:
            return
        new = _joined(gradients)
        if old.numel() != new.numel():  # other parameters were used
            return
        # read together: on a device the host waits once
        products = torch.stack([torch.dot(old, new), torch.dot(old, old), torch.dot(new, new)])
        product, *squares = products.tolist()
        square = sum(squares) / 2.0
        self._add((square - product) * count, product)

    def _add(self, spread: float, square: float) -> None:
        if not (abs(spread) < float("inf") and abs(square) < float("inf")):
            return
        keep = self._memory
        self._spread = keep * self._spread + (1 - keep) * spread
        self._square = keep * self._square + (1 - keep) * square
        self._weight = keep * self._weight + (1 - keep)


def _joined(gradients: Sequence[Tensor]) -> Tensor:
    """A copy: the script may change gradients in place, as clipping does."""
    if not gradients:
        return torch.zeros(0, dtype=torch.float64)
    return torch.cat([g.detach().reshape(-1).double() for g in gradients])
