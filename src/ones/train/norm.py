"""Synchronised batch norm over a set of workers that changes.

A script converts its model with `torch.nn.SyncBatchNorm.convert_sync_batchnorm`, as for
DistributedDataParallel. torch's layer needs its default process group and a GPU; `ones.join` gives
these layers another way to add up, over the group of the present step, on any device. Workers
count by their samples, so uneven batches give statistics and gradient of the global batch.

A step in which workers have different numbers of micro-batches (the short one at the end of an
epoch, perhaps) cannot be synchronised and uses each worker's own statistics.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ones.train.group import Group, GroupLostError, wait_all


class Together:
    """What all layers of a model have in common: with whom they add up, if at all."""

    def __init__(self) -> None:
        self.group: Group | None = None  # of the micro-batch that the script has
        self.weight = 1.0  # this worker's part of the global batch

    def sum(self, group: Group, values: Tensor) -> None:
        """In place. A lost member is no error of the script's forward: the group is closed, which
        wakes the others, and the step fails when gradients are added up."""
        try:
            wait_all([group.sum(values)])
        except GroupLostError:
            group.close()


def synchronise(model: nn.Module) -> Together | None:
    """Take over the layers that were converted. None: there are none."""
    layers = [m for m in model.modules() if isinstance(m, nn.SyncBatchNorm)]
    if not layers:
        return None
    together = Together()
    for layer in layers:
        layer.__class__ = _Layer
        layer.__dict__["together"] = together
    return together


class _Layer(nn.SyncBatchNorm):
    together: Together

    def forward(self, input: Tensor) -> Tensor:
        group = self.together.group
        if not self.training or group is None:
            return super().forward(input)
        normal, mean, variance, count = _Normalise.apply(  # type: ignore[no-untyped-call]
            input, self.eps, self.together, group
        )
        with torch.no_grad():
            self._remember(mean, variance * (count / (count - 1.0)))
        shape = [1, -1] + [1] * (input.dim() - 2)
        if self.weight is not None:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        out: Tensor = normal.to(input.dtype)
        return out

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        if not self.track_running_stats:
            return
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        self.num_batches_tracked.add_(1)
        factor = self.momentum
        if factor is None:
            factor = 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean), factor)
        self.running_var.lerp_(variance.to(self.running_var), factor)


class _Normalise(torch.autograd.Function):
    """(x - mean) / deviation, with mean and variance of all workers' samples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, together: Together, group: Group) -> Any:
        wide = x if x.dtype == torch.float64 else x.float()
        dims = [0, *range(2, x.dim())]
        own = wide.mean(dims).double()
        count = wide.numel() / wide.shape[1]
        squares = wide.var(dims, correction=0).double() + own.square()
        sums = torch.cat([own * count, squares * count, own.new_full((1,), count)])
        together.sum(group, sums)
        total = sums[-1]
        mean, squares = (sums[:-1] / total).chunk(2)
        variance = (squares - mean.square()).clamp_min(0.0)
        shape = [1, -1] + [1] * (x.dim() - 2)
        inverse = (variance + eps).rsqrt().to(wide.dtype).view(shape)
        normal = (wide - mean.to(wide.dtype).view(shape)) * inverse
        ctx.save_for_backward(normal, inverse, total)
        ctx.together, ctx.group, ctx.weight = together, group, together.weight
        ctx.dims, ctx.kind = dims, x.dtype
        ctx.mark_non_differentiable(mean, variance, total)
        return normal, mean, variance, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: object) -> Any:
        """The loss here is that of this worker; its part of the global one is `weight`, by which
        its gradients are multiplied later on."""
        normal, inverse, total = ctx.saved_tensors
        dims, weight = ctx.dims, ctx.weight
        sums = torch.cat([gradient.sum(dims), (gradient * normal).sum(dims)]).double() * weight
        ctx.together.sum(ctx.group, sums)
        means = (sums / (total * weight)).to(gradient.dtype)
        shape = [1, -1] + [1] * (gradient.dim() - 2)
        first, second = (part.view(shape) for part in means.chunk(2))
        back = (gradient - first - normal * second) * inverse
        return back.to(ctx.kind), None, None, None
