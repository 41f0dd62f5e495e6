"""CIFAR-10 and ImageNet: from files where they are, else random tensors of the same shape."""

from __future__ import annotations

import argparse
import io
import pickle
from pathlib import Path

import numpy as np
import torch
from common import Sets, refuse
from torch import Tensor
from torch.utils.data import Dataset

Sample = tuple[Tensor, int]

#: mean and standard deviation of the three colours, over all training images
CIFAR10 = ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def cifar10(args: argparse.Namespace) -> Sets:
    """From `data_batch_1` ... `data_batch_5` and `test_batch`, the "python version" of CIFAR-10."""
    if args.data is None:
        return _random_sets(args)
    folder = args.data / "cifar-10-batches-py"
    if not folder.is_dir():
        folder = args.data
    images, labels = _joined([_cifar_batch(folder / f"data_batch_{part}") for part in range(1, 6)])
    test = _cifar_batch(folder / "test_batch")
    training = PixelImages(images[: args.samples], labels[: args.samples], augment=True)
    return Sets(training, PixelImages(*test, augment=False))


def imagenet(args: argparse.Namespace) -> Sets:
    """From `train/CLASS/*` and `val/CLASS/*`: the first classes by name, as many images of each."""
    if args.data is None:
        return _random_sets(args)
    folders = sorted(folder.name for folder in (args.data / "train").glob("*") if folder.is_dir())
    if len(folders) < args.classes:
        refuse(
            f"{args.data / 'train'}: {len(folders)} folders of images for {args.classes} classes"
        )
    chosen = folders[: args.classes]
    return Sets(
        FileImages(args.data / "train", chosen, args.image_size, args.samples // args.classes),
        FileImages(args.data / "val", chosen, args.image_size),
    )


class PixelImages(Dataset[Sample]):
    """Small images in memory; with `augment`, shifted by up to 4 pixels and sometimes mirrored."""

    def __init__(self, images: Tensor, labels: Tensor, *, augment: bool) -> None:
        self.images, self.labels, self.augment = images, labels, augment

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Sample:
        image = _normalised(self.images[index], *CIFAR10)
        if self.augment:
            size = image.shape[-1]
            padded = torch.nn.functional.pad(image, (4, 4, 4, 4))
            top, left = torch.randint(0, 9, (2,)).tolist()
            image = _mirrored_sometimes(padded[:, top : top + size, left : left + size])
        return image, int(self.labels[index])


class FileImages(Dataset[Sample]):
    """Images in one folder per class. `each`: images to take of a class, cropped at random."""

    def __init__(self, root: Path, classes: list[str], size: int, each: int | None = None) -> None:
        self.size, self.augment = size, each is not None
        self.files = [
            (file, label)
            for label, name in enumerate(classes)
            for file in sorted(file for file in (root / name).glob("*") if file.is_file())[:each]
        ]
        if not self.files:
            refuse(f"{root}: no images of the classes {', '.join(classes)}")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Sample:
        from PIL import Image

        file, label = self.files[index]
        with Image.open(file) as found:
            picture = found.convert("RGB")
        box = _random_box(*picture.size) if self.augment else _middle_box(*picture.size)
        picture = picture.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
        image = _normalised(pixels, *IMAGENET)
        return (_mirrored_sometimes(image) if self.augment else image), label


class RandomImages(Dataset[Sample]):
    """Noise with random labels: the same training cost without a dataset."""

    def __init__(self, count: int, classes: int, size: int, seed: int) -> None:
        self.count, self.size, self.seed = count, size, seed
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, classes, (count,), generator=generator)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        generator = torch.Generator().manual_seed(self.seed + index)
        image = torch.randn(3, self.size, self.size, generator=generator)
        return image, int(self.labels[index])


def _random_sets(args: argparse.Namespace) -> Sets:
    size, classes = args.image_size, args.classes
    few = max(2, args.samples // 10)
    return Sets(RandomImages(args.samples, classes, size, 0), RandomImages(few, classes, size, 1))


def _normalised(pixels: Tensor, mean: tuple[float, ...], spread: tuple[float, ...]) -> Tensor:
    return (pixels.float() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(spread).view(
        3, 1, 1
    )


def _mirrored_sometimes(image: Tensor) -> Tensor:
    return image.flip(-1) if torch.rand(()) < 0.5 else image


def _random_box(width: int, height: int) -> tuple[float, float, float, float]:
    """A part of 8 % to 100 % of the image, of an aspect between 3:4 and 4:3, as large as fits."""
    area = width * height * float(torch.empty(()).uniform_(0.08, 1.0))
    aspect = float(torch.empty(()).uniform_(-1, 1) * np.log(4 / 3))
    wide = min(width, (area * np.exp(aspect)) ** 0.5)
    high = min(height, (area / np.exp(aspect)) ** 0.5)
    left = float(torch.rand(())) * (width - wide)
    top = float(torch.rand(())) * (height - high)
    return left, top, left + wide, top + high


def _middle_box(width: int, height: int) -> tuple[float, float, float, float]:
    """The middle square, 7/8 of the shorter side: 224 of 256 pixels."""
    side = min(width, height) * 7 / 8
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def _joined(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    images, labels = zip(*parts, strict=True)
    return torch.cat(images), torch.cat(labels)


#: functions that a pickled array needs
ARRAY_PARTS = ("_reconstruct", "ndarray", "dtype")


class _ArraysOnly(pickle.Unpickler):
    """Unpickler for CIFAR-10 files: refuses everything but arrays."""

    def find_class(self, module: str, name: str) -> object:
        if module.partition(".")[0] == "numpy" and name in ARRAY_PARTS:
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        if (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not part of a CIFAR-10 file")


def _cifar_batch(file: Path) -> tuple[Tensor, Tensor]:
    try:
        found = _ArraysOnly(io.BytesIO(file.read_bytes()), encoding="bytes").load()
        pixels, labels = np.asarray(found[b"data"], dtype=np.uint8), found[b"labels"]
        images = torch.from_numpy(pixels.reshape(len(labels), 3, 32, 32))
    except FileNotFoundError:
        refuse(f"{file}: no such file; --data takes the folder of CIFAR-10's python version")
    except (pickle.UnpicklingError, KeyError, ValueError, TypeError) as error:
        refuse(f"{file}: not a batch of CIFAR-10's python version ({error})")
    return images, torch.tensor(labels)
