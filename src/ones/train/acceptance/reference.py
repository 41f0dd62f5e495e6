"""The same training in one process, without the training library but for its order of samples."""

from __future__ import annotations

import torch
from torch import nn

from ones.train.acceptance.case import Case
from ones.train.acceptance.models import (
    Forward,
    make_data,
    make_model,
    make_optimizer,
    make_scaler,
)
from ones.train.sampler import permutation, step_samples


def train(case: Case, device: torch.device, steps: int) -> nn.Module:
    """The model after `steps` steps with the global batch of the case."""
    data = make_data(case)
    model = make_model(case, is_reference=True)
    model.to(device)
    optimizer, scaler = make_optimizer(case, model), make_scaler(case, device)
    forward = Forward(case, model, device)
    done = epoch = 0
    while done < steps:
        order, offset = permutation(case.samples, seed=0, epoch=epoch), 0
        while offset < case.samples and done < steps:
            count = step_samples(case.samples - offset, case.batch)
            picked = torch.as_tensor(order[offset : offset + count])
            x, y = (tensor[picked].to(device) for tensor in data.tensors)
            loss = forward(x, y)
            optimizer.zero_grad()
            if scaler is None:
                torch.autograd.backward(loss)
                optimizer.step()
            else:
                torch.autograd.backward(scaler.scale(loss))
                scaler.step(optimizer)
                scaler.update()
            done, offset = done + 1, offset + count
        epoch += 1
    return model


def difference(case: Case, model: nn.Module, reference: nn.Module) -> float:
    """Largest difference of two models, relative to how far training has moved the parameters."""
    began = make_model(case, is_reference=True)
    apart = moved = 0.0
    for own, other, first in zip(
        model.parameters(), reference.parameters(), began.parameters(), strict=True
    ):
        a, b = own.detach().cpu().double(), other.detach().cpu().double()
        apart = max(apart, float((a - b).abs().max()))
        moved = max(moved, float((b - first.detach().double()).abs().max()))
    return apart / moved if moved else float("inf")
