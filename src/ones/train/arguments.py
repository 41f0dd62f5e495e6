"""Checks of the arguments of `ones.join`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ones.errors import UserError
from ones.train.optimizer_set import OptimizerSet


def check_arguments(
    model: Any, optimizer: Any, scheduler: object, scheduler_step: str, max_local_batch: int | None
) -> tuple[nn.Module, Any]:
    """The model and optimizer of the job; several are put together."""
    has_several = isinstance(optimizer, list | tuple) or isinstance(model, list | tuple)
    models = list(model) if isinstance(model, list | tuple) else [model]
    optimizers = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
    for each in models:
        _check_model(each)
    own = {id(p) for each in models for p in each.parameters()}
    taken: set[int] = set()
    for opt in optimizers:
        _check_optimizer(opt, own)
        parameters = {id(p) for group in opt.param_groups for p in group["params"]}
        if parameters & taken:
            raise UserError("two optimizers have the same parameter: each must have its own")
        taken |= parameters
    if has_several and max_local_batch is not None:
        raise UserError(
            "max_local_batch is not supported with several optimizers: batches are not divided into"
            " micro-batches"
        )
    check_scheduler(scheduler, optimizers, scheduler_step)
    if not has_several:
        return model, optimizer
    return nn.ModuleList(models), OptimizerSet(optimizers)


def _check_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise UserError(f"model {type(model).__name__} is not a torch.nn.Module")
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise UserError(
            f"model is wrapped in {type(model).__name__}: pass the model itself, ones.join"
            " synchronises the workers"
        )
    if any(type(m).__name__ == "FullyShardedDataParallel" for m in model.modules()) or any(
        hasattr(p, "device_mesh") for p in model.parameters()
    ):
        raise UserError(
            "model is sharded (FSDP or DTensor), which is not supported: every worker needs the"
            " whole model; submit the script without ones.join to run it at a fixed size"
        )


def _check_optimizer(optimizer: object, own: set[int]) -> None:
    if not isinstance(optimizer, Optimizer):
        raise UserError(f"optimizer {type(optimizer).__name__} is not a torch.optim.Optimizer")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UserError("optimizer LBFGS is not supported: it needs a closure")
    for group in optimizer.param_groups:
        if any(id(p) not in own for p in group["params"]):
            raise UserError("optimizer has parameters that are not the model's")


def check_scheduler(scheduler: Any, optimizers: Sequence[Optimizer], scheduler_step: str) -> None:
    if scheduler is not None and not isinstance(scheduler, LRScheduler | ReduceLROnPlateau):
        methods = ("step", "state_dict", "load_state_dict")
        if not all(callable(getattr(scheduler, name, None)) for name in methods):
            kind = type(scheduler).__name__
            raise UserError(
                f"scheduler {kind} is not a torch.optim.lr_scheduler: it needs step, state_dict and"
                " load_state_dict; for a function of the step use LambdaLR"
            )
    owner = getattr(scheduler, "optimizer", None)
    if owner is not None and not any(owner is optimizer for optimizer in optimizers):
        raise UserError("scheduler belongs to another optimizer")
    if scheduler_step not in ("epoch", "step"):
        raise UserError(f"scheduler_step {scheduler_step!r} is not epoch or step")
