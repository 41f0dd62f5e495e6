"""DistributedDataParallel, started by torchrun."""

import torch
from task import dataset, loss_of, network, result

import ones


def main() -> None:
    model = network()
    data = dataset()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    job = ones.join(model, optimizer, data, batch_size=16, shuffle=False)
    for _ in job.epochs(5):
        for x, y in job.batches():
            job.step(loss_of(model, x, y))
    if job.is_main:
        print(result(model))


if __name__ == "__main__":
    main()
