"""What the scripts here train; tests build the same for comparison."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


class Samples(Dataset[Any]):
    def __init__(self, count: int, dtype: torch.dtype = torch.float64) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(count, 6, generator=generator, dtype=torch.float64).to(dtype)
        self.y = (self.x[:, :1] * 2 - self.x[:, 1:2]).tanh()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return self.x[index], self.y[index], index


class Stream:
    """The same samples in shards of unequal length."""

    def __init__(self, samples: Samples, shards: int) -> None:
        self.num_shards = shards
        cuts = [len(samples) * n * n // (shards * shards) for n in range(shards + 1)]
        self._shards = [[samples[i] for i in range(a, b)] for a, b in itertools.pairwise(cuts)]

    def read(self, shard: int, start: int, epoch: int) -> Iterator[Any]:
        return iter(self._shards[shard][start:])


def build(
    norm: bool = False, dtype: torch.dtype = torch.float64, *, convolution: bool = False
) -> nn.Module:
    torch.manual_seed(7)
    if convolution:
        layers = nn.Sequential(
            nn.Unflatten(1, (2, 3, 1)), nn.Conv2d(2, 8, (2, 1)), nn.Tanh(), nn.Flatten(),
            nn.Linear(16, 1),
        )  # fmt: skip
        return layers.to(dtype, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]
    between: list[nn.Module] = [nn.BatchNorm1d(16)] if norm else []
    net = nn.Sequential(
        nn.Linear(6, 16), *between, nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1)
    )
    return net.to(dtype)


def synchronised(net: nn.Module) -> nn.Module:
    made: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(net)  # type: ignore[no-untyped-call]
    return made


def optimizer_of(net: nn.Module, name: str) -> torch.optim.Optimizer:
    name, _, variant = name.partition("-")
    foreach = True if variant == "foreach" else None
    fused = True if variant == "fused" else None
    if name == "adamw":
        return torch.optim.AdamW(net.parameters(), lr=0.003, foreach=foreach, fused=fused)
    if name == "adagrad":
        return torch.optim.Adagrad(net.parameters(), lr=0.01)
    return torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, foreach=foreach, fused=fused)
