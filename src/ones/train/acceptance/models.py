"""Model, optimizer and data of a case."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.utils.data import TensorDataset

from ones.train.acceptance.case import Case

_RATES = {"sgd": 0.02, "adamw": 0.001}


def make_model(case: Case, *, is_reference: bool = False) -> nn.Module:
    """The same in every worker. The reference has plain batch norm: its batch is the global one."""
    torch.manual_seed(7)
    dtype = getattr(torch, case.dtype)
    if case.layers == "linear":
        net = nn.Sequential(
            nn.Linear(12, case.width), nn.Tanh(), nn.Linear(case.width, case.width), nn.Tanh(),
            nn.Linear(case.width, 1),
        )  # fmt: skip
        return net.to(dtype)
    norm = [nn.BatchNorm2d(8)] if case.sync_norm else []
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), *norm, nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * 3 * 3, 1),
    ).to(dtype)  # fmt: skip
    if case.channels_last:
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if case.sync_norm and not is_reference:
        net = nn.SyncBatchNorm.convert_sync_batchnorm(net)  # type: ignore[no-untyped-call]
    return net


def make_optimizer(case: Case, model: nn.Module) -> Optimizer:
    options: dict[str, Any] = {case.variant: True} if case.variant else {}
    rate = _RATES[case.optimizer]
    if case.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=rate, **options)
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, **options)


def make_data(case: Case) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    shape = (12,) if case.layers == "linear" else (3, 8, 8)
    x = torch.randn(case.samples, *shape, generator=generator, dtype=torch.float64)
    y = x.reshape(case.samples, -1)[:, :3].sum(1, keepdim=True).tanh()
    dtype = getattr(torch, case.dtype)
    return TensorDataset(x.to(dtype), y.to(dtype))


def make_scaler(case: Case, device: torch.device) -> GradScaler | None:
    return GradScaler(device.type, 1024.0) if case.autocast == "float16" else None


class Forward:
    """The loss of a batch, as a script would compute it."""

    def __init__(self, case: Case, model: nn.Module, device: torch.device) -> None:
        self._case, self._device = case, device
        self._model: Any = model
        if case.compiled:
            self._model = torch.compile(model, backend=case.compiled)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        case = self._case
        if case.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        kind = getattr(torch, case.autocast) if case.autocast else None
        with torch.autocast(self._device.type, dtype=kind, enabled=kind is not None):
            guess = self._model(x)
        return nn.functional.mse_loss(guess.to(y.dtype), y)
