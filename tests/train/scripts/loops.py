"""Scripts that leave their loops, keep state of their own, or train differently in each worker.

Environment: OUT, SHAPE, STREAM. A step waits for the file `joined` from step 6 on, so that all
workers of the schedule come.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from parts import Samples, build  # type: ignore[import-not-found]
from torch import nn

import ones

out, shape = Path(os.environ["OUT"]), os.environ["SHAPE"]
worker = os.environ.get("ONES_WORKER", "alone/0")
is_second = worker.endswith("/1")
torch.set_num_threads(1)


class Average:
    def __init__(self, net: nn.Module) -> None:
        self.values = [p.detach().clone() for p in net.parameters()]

    def update(self, net: nn.Module) -> None:
        torch._foreach_lerp_(self.values, [p.detach() for p in net.parameters()], 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = list(state["values"])


def wait_for_workers(job: Any) -> None:  # noqa: ANN401
    """Trains slowly until there are two workers."""
    if job.workers == 2:
        (out / "joined").touch()
    elif job.steps >= 6 and not (out / "joined").exists():
        time.sleep(0.1)


def own_rate(job: Any, steps: int) -> None:  # noqa: ANN401
    """A schedule by a counter of the script's own."""
    if shape == "rate" and steps > 3:
        for group in job._replica.optimizer.param_groups:
            group["lr"] = 0.02 / steps


def own_noise(job: Any, net: nn.Module) -> None:  # noqa: ANN401
    if shape == "noise" and job.workers == 2:
        with torch.no_grad():
            next(net.parameters()).add_(torch.rand(()) * (1 + is_second))


def leaves(job: Any, steps: int, in_epoch: int) -> str:  # noqa: ANN401
    """How this worker leaves the loop over batches, if it does."""
    at_end = job.samples % 64 == 0  # the last batch of an epoch: the others end it
    if job.workers < 2:
        return ""
    if shape.startswith("stop") and not is_second and (at_end or shape == "stop") and steps >= 12:
        job.stop()
    if shape == "break" and is_second and in_epoch == 3:
        return "break"
    if is_second and (shape, steps) == ("return", 5):
        return "return"
    return "return" if is_second and shape == "return at end" and at_end else ""


def train(job: Any, net: nn.Module, average: Average) -> None:  # noqa: ANN401
    steps = 0
    for epoch in job.epochs(200 if shape != "average" else 6):
        for in_epoch, (x, y, _) in enumerate(job.batches(), 1):
            loss = nn.functional.mse_loss(net(x), y)
            own_rate(job, steps)
            if job.step(loss):  # else the step was undone, or more micro-batches follow
                average.update(net)
            steps += 1
            own_noise(job, net)
            job.state["steps"] = int(job.steps)
            wait_for_workers(job)
            how = leaves(job, steps, in_epoch)
            if how == "break":
                break
            if how == "return":
                return
        if shape == "break" and epoch > 12 and job.workers == 2:
            return


def main() -> None:
    net = build()
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    samples = Samples(64)
    # a stream: a function that returns an iterable
    data = (lambda: (samples[i] for i in range(64))) if "STREAM" in os.environ else samples
    job = ones.join(net, opt, data, batch_size=16)
    average = Average(net)
    job.also(average=average)
    if shape == "steps":
        for x, y, _ in job.steps(40):
            job.step(nn.functional.mse_loss(net(x), y))
    else:
        train(job, net, average)
    end = {
        "steps": int(job.steps),
        "state": job.state,
        "workers": job.workers,
        "net": [p.detach().double().sum().item() for p in net.parameters()],
        "average": [float(p.double().sum()) for p in average.values],
    }
    (out / f"end-{worker.replace('/', '-')}.json").write_text(json.dumps(end))


if __name__ == "__main__":
    main()
