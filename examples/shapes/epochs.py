"""Epochs over a DataLoader, with a schedule per epoch."""

import torch
from task import dataset, loss_of, network, result
from torch.utils.data import DataLoader

import ones


def main() -> None:
    model = network()
    loader = DataLoader(dataset(), batch_size=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    job = ones.join(model, optimizer, loader, scheduler=scheduler)
    for _ in job.epochs(5):
        for x, y in job.batches():
            loss = loss_of(model, x, y)
            job.step(loss, clip=1.0)
    job.log(result(model))


if __name__ == "__main__":
    main()
