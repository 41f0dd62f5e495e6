"""Trains a convolutional network on the handwritten digits (8 x 8 pixels) of scikit-learn."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import ones
from ones.stopping import StopRule


def digits() -> tuple[TensorDataset, TensorDataset]:
    """1,437 training images of 8 x 8 pixels and 360 for validation."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    y = torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    training, validation = order[360:], order[:360]
    return TensorDataset(x[training], y[training]), TensorDataset(x[validation], y[validation])


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(128, 128, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(2048, 128),
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
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--target", type=float, default=0.99, help="accuracy at which to stop")
    args = parser.parse_args()

    torch.manual_seed(0)
    training, validation = digits()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
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
