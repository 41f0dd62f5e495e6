"""Inception v3 (Szegedy et al. 2015, arXiv 1512.00567), with its auxiliary classifier."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from .layers import Branches, ConvNorm, start_from_scratch

#: weight of the auxiliary classifier in the loss
AUXILIARY = 0.4


class InceptionV3(nn.Module):
    """For images of 299 pixels; smaller ones leave no pixels for the auxiliary classifier."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            _conv(3, 32, 3, stride=2),
            _conv(32, 32, 3),
            _conv(32, 64, 3, padding=1),
            nn.MaxPool2d(3, stride=2),
            _conv(64, 80, 1),
            _conv(80, 192, 3),
            nn.MaxPool2d(3, stride=2),
        )
        self.middle = nn.Sequential(
            _block35(192, 32), _block35(256, 64), _block35(288, 64), _shrink35(288),
            _block17(128), _block17(160), _block17(160), _block17(192),
        )  # fmt: skip
        self.auxiliary = nn.Sequential(
            nn.AvgPool2d(5, stride=3), _conv(768, 128, 1), _conv(128, 768, 5),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(768, classes),
        )  # fmt: skip
        self.top = nn.Sequential(
            _shrink17(768), _block8(1280), _block8(2048),
            nn.AdaptiveAvgPool2d(1), nn.Dropout(0.5), nn.Flatten(), nn.Linear(2048, classes),
        )  # fmt: skip
        start_from_scratch(self)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Scores; while training, those of the auxiliary classifier too."""
        middle = self.middle(self.stem(x))
        scores: Tensor = self.top(middle)
        return (scores, self.auxiliary(middle)) if self.training else scores


def loss_with_auxiliary(outputs: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
    scores, auxiliary = outputs
    return functional.cross_entropy(scores, labels) + AUXILIARY * functional.cross_entropy(
        auxiliary, labels
    )


def _conv(inputs: int, outputs: int, kernel: int | tuple[int, int], **options: Any) -> nn.Module:
    return ConvNorm(inputs, outputs, kernel, eps=1e-3, **options)


def _pooled(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), _conv(inputs, outputs, 1))


def _block35(inputs: int, pooled: int) -> nn.Module:
    """On 35 x 35 pixels."""
    return Branches(
        _conv(inputs, 64, 1),
        nn.Sequential(_conv(inputs, 48, 1), _conv(48, 64, 5, padding=2)),
        nn.Sequential(
            _conv(inputs, 64, 1), _conv(64, 96, 3, padding=1), _conv(96, 96, 3, padding=1)
        ),
        _pooled(inputs, pooled),
    )


def _shrink35(inputs: int) -> nn.Module:
    """From 35 x 35 to 17 x 17 pixels."""
    return Branches(
        _conv(inputs, 384, 3, stride=2),
        nn.Sequential(
            _conv(inputs, 64, 1), _conv(64, 96, 3, padding=1), _conv(96, 96, 3, stride=2)
        ),
        nn.MaxPool2d(3, stride=2),
    )


def _row(inputs: int, outputs: int) -> nn.Module:
    return _conv(inputs, outputs, (1, 7), padding=(0, 3))


def _column(inputs: int, outputs: int) -> nn.Module:
    return _conv(inputs, outputs, (7, 1), padding=(3, 0))


def _block17(width: int) -> nn.Module:
    """On 17 x 17 pixels: a 7 x 7 convolution as a row and a column."""
    return Branches(
        _conv(768, 192, 1),
        nn.Sequential(_conv(768, width, 1), _row(width, width), _column(width, 192)),
        nn.Sequential(
            _conv(768, width, 1),
            _column(width, width),
            _row(width, width),
            _column(width, width),
            _row(width, 192),
        ),
        _pooled(768, 192),
    )


def _shrink17(inputs: int) -> nn.Module:
    """From 17 x 17 to 8 x 8 pixels."""
    return Branches(
        nn.Sequential(_conv(inputs, 192, 1), _conv(192, 320, 3, stride=2)),
        nn.Sequential(
            _conv(inputs, 192, 1), _row(192, 192), _column(192, 192), _conv(192, 192, 3, stride=2)
        ),
        nn.MaxPool2d(3, stride=2),
    )


def _spread() -> nn.Module:
    """The 3 x 3 convolution of the last blocks: a row and a column side by side."""
    return Branches(
        _conv(384, 384, (1, 3), padding=(0, 1)), _conv(384, 384, (3, 1), padding=(1, 0))
    )


def _block8(inputs: int) -> nn.Module:
    """On 8 x 8 pixels."""
    return Branches(
        _conv(inputs, 320, 1),
        nn.Sequential(_conv(inputs, 384, 1), _spread()),
        nn.Sequential(_conv(inputs, 448, 1), _conv(448, 384, 3, padding=1), _spread()),
        _pooled(inputs, 192),
    )
