"""A number of steps, with a learning rate by step, and a check now and then."""

import math

import torch
from task import dataset, loss_of, network, result
from torch.utils.data import DataLoader

import ones

STEPS = 32


def factor(step: int) -> float:
    """Warm-up, then a cosine."""
    return min(1.0, (step + 1) / 5) * 0.5 * (1 + math.cos(math.pi * step / STEPS))


def main() -> None:
    model = network()
    loader = DataLoader(dataset(), batch_size=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    job = ones.join(model, optimizer, loader, scheduler=scheduler, scheduler_step="step")
    for x, y in job.steps(STEPS):
        job.step(loss_of(model, x, y))
        if job.every(steps=10):
            job.log("step", job.steps)
    job.log(result(model))


if __name__ == "__main__":
    main()
