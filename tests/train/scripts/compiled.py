"""A compiled model; at the end each worker prints how many graphs torch has compiled."""

import sys
from pathlib import Path

import torch
from torch._dynamo.utils import counters

import ones

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "shapes"))
from task import dataset, loss_of, network  # type: ignore[import-not-found]

model = network()
compiled = torch.compile(model, backend="eager")
job = ones.join(
    model,
    torch.optim.SGD(model.parameters(), lr=0.05),
    dataset(),
    batch_size=16,
    rehearsal=lambda batch: loss_of(compiled, *batch),
)
sizes = set()
for _ in job.epochs(8):
    for x, y in job.batches():
        sizes.add(len(x))
        job.step(loss_of(compiled, x, y))
    print(f"graphs {counters['stats']['unique_graphs']} sizes {sorted(sizes)}", flush=True)
