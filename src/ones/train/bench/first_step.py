"""An elastic script that writes the time of its first step to a file: `first_step FILE`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import ones


def main() -> None:
    mark = Path(sys.argv[1])
    model = nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job = ones.join(model, optimizer, TensorDataset(torch.randn(64, 16)), batch_size=16)
    for _ in job.epochs(1):
        for (x,) in job.batches():
            job.step(model(x).square().mean())
            if not mark.exists():
                temporary = mark.with_suffix(".new")
                temporary.write_text(str(time.monotonic()))
                temporary.replace(mark)


if __name__ == "__main__":
    main()
