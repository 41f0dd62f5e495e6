"""Synchronised batch norm for a group of workers that changes.

A script converts its model with `torch.nn.SyncBatchNorm.convert_sync_batchnorm`, as for
DistributedDataParallel. torch's layer needs its default process group and a GPU; `ones.join`
replaces these layers by ones that reduce over the current group, on any device. Workers are
weighted by their samples, so uneven batches give statistics and gradient of the global batch.

A step in which workers have different numbers of micro-batches (such as a short one at the end of
an epoch) cannot be synchronised and uses each worker's own statistics.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ones.train.process_group import GroupLostError, ProcessGroup, wait_all


class BatchNormSync:
    """The group over which all layers of a model are synchronised."""

    def __init__(self) -> None:
        self.group: ProcessGroup | None = None  # for the current micro-batch; None: not at all
        self.weight = 1.0  # this worker's part of the global batch

    def all_reduce(self, group: ProcessGroup, values: Tensor) -> None:
        """Sums in place. A lost member is not an error here, in the script's forward.

        The group is closed, which wakes the others, and the step fails in the gradient reduction.
        """
        try:
            wait_all([group.all_reduce(values)])
        except GroupLostError:
            group.close()


def convert_sync_layers(model: nn.Module) -> BatchNormSync | None:
    """Replaces torch's SyncBatchNorm layers in place. None: the model has none."""
    layers = [m for m in model.modules() if isinstance(m, nn.SyncBatchNorm)]
    if not layers:
        return None
    sync = BatchNormSync()
    for layer in layers:
        layer.__class__ = _Layer
        layer.__dict__["sync"] = sync
    return sync


class _Layer(nn.SyncBatchNorm):
    sync: BatchNormSync

    def forward(self, input: Tensor) -> Tensor:
        group = self.sync.group
        if not self.training or group is None:
            return super().forward(input)
        normal, mean, variance, count = _Normalisation.apply(  # type: ignore[no-untyped-call]
            input, self.eps, self.sync, group
        )
        with torch.no_grad():
            self._update_statistics(mean, variance * (count / (count - 1.0)))
        shape = [1, -1] + [1] * (input.dim() - 2)
        if self.weight is not None:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        out: Tensor = normal.to(input.dtype)
        return out

    def _update_statistics(self, mean: Tensor, variance: Tensor) -> None:
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


class _Normalisation(torch.autograd.Function):
    """(x - mean) / deviation, with mean and variance of all workers' samples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, sync: BatchNormSync, group: ProcessGroup) -> Any:
        wide = x if x.dtype == torch.float64 else x.float()
        dims = [0, *range(2, x.dim())]
        own = wide.mean(dims).double()
        count = wide.numel() / wide.shape[1]
        squares = wide.var(dims, correction=0).double() + own.square()
        sums = torch.cat([own * count, squares * count, own.new_full((1,), count)])
        sync.all_reduce(group, sums)
        total = sums[-1]
        mean, squares = (sums[:-1] / total).chunk(2)
        variance = (squares - mean.square()).clamp_min(0.0)
        shape = [1, -1] + [1] * (x.dim() - 2)
        inverse = (variance + eps).rsqrt().to(wide.dtype).view(shape)
        normal = (wide - mean.to(wide.dtype).view(shape)) * inverse
        ctx.save_for_backward(normal, inverse, total)
        ctx.sync, ctx.group, ctx.weight = sync, group, sync.weight
        ctx.dims, ctx.kind = dims, x.dtype
        ctx.mark_non_differentiable(mean, variance, total)
        return normal, mean, variance, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: object) -> Any:
        """The loss is this worker's; its gradients are multiplied by `weight` in the reduction."""
        normal, inverse, total = ctx.saved_tensors
        dims, weight = ctx.dims, ctx.weight
        sums = torch.cat([gradient.sum(dims), (gradient * normal).sum(dims)]).double() * weight
        ctx.sync.all_reduce(ctx.group, sums)
        means = (sums / (total * weight)).to(gradient.dtype)
        shape = [1, -1] + [1] * (gradient.dim() - 2)
        first, second = (part.view(shape) for part in means.chunk(2))
        back = (gradient - first - normal * second) * inverse
        return back.to(ctx.kind), None, None, None
