"""The elastic side of `ones bench rescale`: an ordinary script that records its step times."""

from __future__ import annotations

import argparse
import os
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import ones
from ones.train.bench.models import mlp
from ones.train.bench.step_times import StepTimes


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--depth", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = mlp(args.width, args.depth)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    data = TensorDataset(torch.randn(1024, args.width), torch.randn(1024, args.width))
    loss = nn.MSELoss()
    name = os.environ.get("ONES_WORKER", "alone")
    times = StepTimes(args.out, name)
    forward = torch.compile(model) if args.compile else model
    job = ones.join(
        model,
        optimizer,
        data,
        batch_size=args.batch,
        rehearsal=lambda batch: loss(forward(batch[0]), batch[1]),
    )
    for _ in job.epochs(1_000_000):  # until the benchmark ends it
        for x, y in job.batches():
            begin, workers = time.monotonic(), job.workers
            job.step(loss(forward(x), y))
            times.step(workers=workers, step=job.steps, begin=begin, rank=0 if job.is_main else 1)


if __name__ == "__main__":
    main()
