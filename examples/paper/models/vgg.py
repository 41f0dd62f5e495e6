"""VGG-16 (Simonyan and Zisserman 2014, arXiv 1409.1556), column D."""

from __future__ import annotations

from torch import nn

from .layers import ConvNorm, start_from_scratch

#: channels of the convolutions of each stage; a pooling halves the image after every stage
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg16(classes: int) -> nn.Module:
    """As published, without normalisation, for images of 32 pixels and more; made for 224."""
    model = nn.Sequential(
        *_features(normalised=False),
        nn.AdaptiveAvgPool2d(7),
        nn.Flatten(),
        nn.Linear(512 * 7 * 7, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(4096, classes),
    )
    start_from_scratch(model)
    return model


def vgg16_small(classes: int) -> nn.Module:
    """As usual for CIFAR: batch normalisation, and one linear layer on the last 1 x 1 pixels."""
    model = nn.Sequential(
        *_features(normalised=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes)
    )
    start_from_scratch(model)
    return model


def _features(*, normalised: bool) -> list[nn.Module]:
    layers: list[nn.Module] = []
    inputs = 3
    for stage in STAGES:
        for outputs in stage:
            if normalised:
                layers += [ConvNorm(inputs, outputs, 3, padding=1, bias=True)]
            else:
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    return layers
