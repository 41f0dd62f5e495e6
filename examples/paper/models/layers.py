"""Building blocks that several networks share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class ConvNorm(nn.Sequential):
    """Convolution, batch normalisation, ReLU."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int | tuple[int, int], **options: Any
    ) -> None:
        eps = options.pop("eps", 1e-5)
        options.setdefault("bias", False)  # the normalisation removes any bias
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, **options),
            nn.BatchNorm2d(outputs, eps=eps),
            nn.ReLU(inplace=True),
        )


class Branches(nn.Module):
    """Parallel branches on the same input; their outputs are concatenated as channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def start_from_scratch(model: nn.Module) -> None:
    """Initialises the weights of an untrained network (He et al. 2015 for convolutions)."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
