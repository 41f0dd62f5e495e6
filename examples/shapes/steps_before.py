"""A number of steps, with a learning rate by step, and a check now and then."""

import math
from collections.abc import Iterator

import torch
from task import dataset, loss_of, network, result
from torch.utils.data import DataLoader

STEPS = 32


def factor(step: int) -> float:
    """Warm-up, then a cosine."""
    return min(1.0, (step + 1) / 5) * 0.5 * (1 + math.cos(math.pi * step / STEPS))


def forever(loader: DataLoader) -> Iterator:
    while True:
        yield from loader


def main() -> None:
    model = network()
    loader = DataLoader(dataset(), batch_size=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(forever(loader)):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * factor(step)
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
        if (step + 1) % 10 == 0:
            print("step", step + 1)
        if step + 1 == STEPS:
            break
    print(result(model))


if __name__ == "__main__":
    main()
