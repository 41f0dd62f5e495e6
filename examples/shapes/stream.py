"""A stream of samples: an IterableDataset, read epoch by epoch."""

from collections.abc import Iterator

import torch
from task import dataset, loss_of, network, result
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

import ones


class Stream(IterableDataset):
    """As a file would be read: line by line."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from dataset(100)


def main() -> None:
    model = network()
    loader = DataLoader(Stream(), batch_size=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.8)
    job = ones.join(model, optimizer, loader, scheduler=scheduler, scheduler_step="step")
    for _ in job.epochs(5):
        for x, y in job.batches():
            job.step(loss_of(model, x, y))
    job.log(result(model))


if __name__ == "__main__":
    main()
