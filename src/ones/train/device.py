"""The device of a worker, and the communication library of that device."""

from __future__ import annotations

import os
from typing import Any

import torch

from ones.errors import UserError
from ones.train import emulation

_BACKENDS = ("nccl", "gloo")


def find_device() -> torch.device:
    """The GPU of this worker, else the CPU."""
    if emulation.is_requested():
        from ones.train.emulation.extension import activate

        return activate(os.environ[emulation.VARIABLE])
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def module_of(device: torch.device) -> Any:
    """The module of torch for this type of device, such as `torch.cuda`."""
    return getattr(torch, device.type)


def backend_name() -> str:
    """The library for device tensors: NCCL, or gloo, which is slow but lets workers share a GPU."""
    name = os.environ.get("ONES_BACKEND", "nccl")
    if name not in _BACKENDS:
        raise UserError(f"ONES_BACKEND {name!r} is not one of: {', '.join(_BACKENDS)}")
    return name
