"""ResNet-18 and ResNet-50 (He et al. 2015, arXiv 1512.03385).

The stride of a bottleneck is in its 3 x 3 convolution, as in most implementations today.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from .layers import ConvNorm, start_from_scratch

Block = Callable[[int, int, int], "Residual"]


class Residual(nn.Module):
    """Adds what its body computes to its input."""

    def __init__(self, inputs: int, outputs: int, stride: int, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.body(x) + self.shortcut(x))
        return out


def basic(inputs: int, width: int, stride: int) -> Residual:
    body = nn.Sequential(
        ConvNorm(inputs, width, 3, stride=stride, padding=1),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
    )
    return Residual(inputs, width, stride, body)


def bottleneck(inputs: int, width: int, stride: int) -> Residual:
    body = nn.Sequential(
        ConvNorm(inputs, width, 1),
        ConvNorm(width, width, 3, stride=stride, padding=1),
        nn.Conv2d(width, 4 * width, 1, bias=False),
        nn.BatchNorm2d(4 * width),
    )
    return Residual(inputs, 4 * width, stride, body)


def resnet18(classes: int) -> nn.Module:
    """For ImageNet."""
    return _resnet(basic, 1, (2, 2, 2, 2), classes, small=False)


def resnet18_small(classes: int) -> nn.Module:
    """For the 32 x 32 images of CIFAR: the first layers keep the size of the image."""
    return _resnet(basic, 1, (2, 2, 2, 2), classes, small=True)


def resnet50(classes: int) -> nn.Module:
    """For ImageNet."""
    return _resnet(bottleneck, 4, (3, 4, 6, 3), classes, small=False)


def _resnet(
    block: Block, expansion: int, depths: tuple[int, ...], classes: int, *, small: bool
) -> nn.Module:
    layers: list[nn.Module] = (
        [ConvNorm(3, 64, 3, padding=1)]
        if small
        else [ConvNorm(3, 64, 7, stride=2, padding=3), nn.MaxPool2d(3, stride=2, padding=1)]
    )
    inputs = 64
    for stage, depth in enumerate(depths):
        width = 64 * 2**stage
        for place in range(depth):
            layers.append(block(inputs, width, 2 if place == 0 and stage > 0 else 1))
            inputs = width * expansion
    model = nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)
    )
    start_from_scratch(model)
    return model
