"""GoogLeNet (Szegedy et al. 2014, arXiv 1409.4842) for the 32 x 32 images of CIFAR.

As usual for CIFAR: batch normalisation everywhere, one convolution for a stem, no
auxiliary classifiers, and two 3 x 3 convolutions in the place of each 5 x 5.
"""

from __future__ import annotations

from torch import nn

from .layers import Branches, ConvNorm, start_from_scratch

#: rows of the paper's table 1, with a pooling between the groups:
#: inputs; 1 x 1; 3 x 3 reduced, 3 x 3; 5 x 5 reduced, 5 x 5; after the pooling
GROUPS = (
    ((192, 64, 96, 128, 16, 32, 32), (256, 128, 128, 192, 32, 96, 64)),
    (
        (480, 192, 96, 208, 16, 48, 64),
        (512, 160, 112, 224, 24, 64, 64),
        (512, 128, 128, 256, 24, 64, 64),
        (512, 112, 144, 288, 32, 64, 64),
        (528, 256, 160, 320, 32, 128, 128),
    ),
    ((832, 256, 160, 320, 32, 128, 128), (832, 384, 192, 384, 48, 128, 128)),
)


def googlenet_small(classes: int) -> nn.Module:
    layers: list[nn.Module] = [_conv(3, 192, 3)]
    for place, group in enumerate(GROUPS):
        if place > 0:
            layers.append(nn.MaxPool2d(3, stride=2, padding=1))
        layers += [_inception(*row) for row in group]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, classes))
    start_from_scratch(model)
    return model


def _inception(
    inputs: int, one: int, three_in: int, three: int, five_in: int, five: int, pooled: int
) -> nn.Module:
    return Branches(
        _conv(inputs, one, 1),
        nn.Sequential(_conv(inputs, three_in, 1), _conv(three_in, three, 3)),
        nn.Sequential(_conv(inputs, five_in, 1), _conv(five_in, five, 3), _conv(five, five, 3)),
        nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), _conv(inputs, pooled, 1)),
    )


def _conv(inputs: int, outputs: int, kernel: int) -> nn.Module:
    return ConvNorm(inputs, outputs, kernel, padding=kernel // 2, bias=True)
