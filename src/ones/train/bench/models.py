"""Models of benchmarks, chosen for size and number of tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset


def mlp(width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers)


class _Attention(nn.Module):
    """A layer of a transformer, pre-norm, with torch's fused attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2)
            for t in self.qkv(self.first(x)).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        out: Tensor = x + self.down(functional.gelu(self.up(self.second(x))))
        return out


class _Transformer(nn.Module):
    def __init__(self, tokens: int, width: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.layers = nn.Sequential(*(_Attention(width, 8) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.layers(self.tokens(x))) @ self.tokens.weight.T  # tied
        return out.transpose(1, 2)


@dataclass(frozen=True, slots=True)
class BenchModel:
    model: nn.Module
    data: TensorDataset
    loss: nn.Module
    local_batch: int


def make_model(name: str) -> BenchModel:
    """A model with its data; the same in every process."""
    torch.manual_seed(0)
    if name == "cnn":
        convolution = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip
        data = TensorDataset(torch.randn(2048, 1, 28, 28), torch.randint(0, 10, (2048,)))
        return BenchModel(convolution, data, nn.CrossEntropyLoss(), 16)
    if name == "transformer":
        tokens = torch.randint(0, 8000, (2048, 33))
        data = TensorDataset(tokens[:, :-1], tokens[:, 1:])
        return BenchModel(_Transformer(8000, 320, 8), data, nn.CrossEntropyLoss(), 1)
    if name == "mlp":
        width = 1000
        data = TensorDataset(torch.randn(2048, width), torch.randn(2048, width))
        return BenchModel(mlp(width, 12), data, nn.MSELoss(), 16)
    raise SystemExit(f"model {name!r} is not cnn, transformer or mlp")
