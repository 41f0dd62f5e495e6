"""Checks of the arguments of `ones.join`."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ones.errors import UserError


def check_arguments(
    model: object, optimizer: object, scheduler: object, scheduler_step: str
) -> None:
    if isinstance(optimizer, list | tuple | dict):
        raise UserError("ones.join takes one optimizer: several are not supported")
    if not isinstance(optimizer, Optimizer):
        raise UserError(f"optimizer {type(optimizer).__name__} is not a torch.optim.Optimizer")
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
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UserError("optimizer LBFGS is not supported: it needs a closure")
    own = {id(p) for p in model.parameters()}
    for group in optimizer.param_groups:
        if any(id(p) not in own for p in group["params"]):
            raise UserError("optimizer has parameters that are not the model's")
    check_scheduler(scheduler, optimizer, scheduler_step)


def check_scheduler(scheduler: object, optimizer: Optimizer, scheduler_step: str) -> None:
    if scheduler is not None and not isinstance(scheduler, LRScheduler | ReduceLROnPlateau):
        methods = ("step", "state_dict", "load_state_dict")
        if not all(callable(getattr(scheduler, name, None)) for name in methods):
            kind = type(scheduler).__name__
            raise UserError(
                f"scheduler {kind} is not a torch.optim.lr_scheduler: it needs step, state_dict and"
                " load_state_dict; for a function of the step use LambdaLR"
            )
    if scheduler is not None and getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise UserError("scheduler belongs to another optimizer")
    if scheduler_step not in ("epoch", "step"):
        raise UserError(f"scheduler_step {scheduler_step!r} is not epoch or step")
