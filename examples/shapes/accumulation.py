"""Gradient accumulation: four small batches for each step."""

import torch
from task import dataset, loss_of, network, result

import ones

PARTS = 4


def main() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    job = ones.join(
        model, optimizer, dataset(), batch_size=4 * PARTS, max_local_batch=4, shuffle=False
    )
    for _ in job.epochs(5):
        for x, y in job.batches():
            job.backward(loss_of(model, x, y))
            if job.accumulate():
                continue
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            job.update()
    job.log(result(model))


if __name__ == "__main__":
    main()
