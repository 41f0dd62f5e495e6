"""The same steps under DistributedDataParallel, in the workers of an elastic job."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

from ones.train.acceptance.case import Case
from ones.train.acceptance.models import Forward, make_data, make_model, make_optimizer
from ones.train.device import backend_name, module_of

dist: Any = torch.distributed


class DdpSteps:
    """Blocks of steps of DDP, with as many samples for each worker as in the elastic job."""

    def __init__(self, case: Case, device: torch.device, out: Path, rank: int, size: int) -> None:
        is_cuda = device.type == "cuda"
        self._device = device if is_cuda else torch.device("cpu")  # DDP knows no emulated device
        self._sync = module_of(self._device).synchronize if is_cuda else lambda: None
        store = dist.FileStore(str(out / "ddp-store"), size)
        backend = backend_name() if is_cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
        model = make_model(case)
        model.to(self._device)
        self._model: Any = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self._optimizer = make_optimizer(case, model)
        self._forward = Forward(case, self._model, self._device)
        x, y = (tensor[: case.batch // size] for tensor in make_data(case).tensors)
        self._x, self._y = x, y

    def seconds(self, steps: int) -> float:
        """Mean seconds of a step."""
        dist.barrier()
        self._sync()
        began = time.perf_counter()
        for _ in range(steps):
            x, y = self._x.to(self._device), self._y.to(self._device)
            torch.autograd.backward(self._forward(x, y))
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        self._sync()
        return (time.perf_counter() - began) / steps
