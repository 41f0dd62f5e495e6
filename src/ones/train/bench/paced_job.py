"""The paced job of `ones bench fidelity`: real workers, real all-reduce, and sleep for arithmetic.

A step sleeps as long as its samples would take on a device, then does all that a real one does. So
eight workers behave as eight devices even on two cores. Gradients are zero, so that no gradient
noise is measured; the loss of each epoch is an argument.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import ones


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--max-local-batch", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--fixed", type=float, required=True, help="seconds for each micro-batch")
    parser.add_argument("--per-sample", type=float, required=True, help="seconds for each sample")
    parser.add_argument("--losses", required=True, help="loss of each epoch, comma-separated")
    args = parser.parse_args()
    losses = [float(loss) for loss in args.losses.split(",")]
    model = nn.Linear(16, 16, bias=False)
    job = ones.join(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        TensorDataset(torch.zeros(args.samples, 1)),
        batch_size=args.batch,
        max_local_batch=args.max_local_batch,
    )
    for epoch in job.epochs(args.epochs):
        for (x,) in job.batches():
            time.sleep(args.fixed + args.per_sample * len(x))
            job.step(0.0 * model.weight.sum() + losses[epoch])


if __name__ == "__main__":
    main()
