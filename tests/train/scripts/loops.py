"""Scripts that leave their loops, keep state of their own, or train differently in each worker.

Environment: OUT, SHAPE. A step waits for the file `joined` from step 6 on, so that all workers of
the schedule come.
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


def train(job: Any, net: nn.Module, average: Average) -> None:  # noqa: ANN401
    own_steps = 0
    for epoch in job.epochs(200 if shape != "average" else 6):
        in_epoch = 0
        for x, y, _ in job.batches():
            loss = nn.functional.mse_loss(net(x), y)
            if shape == "rate" and own_steps > 3:  # a schedule by a counter of the script's own
                for group in job._replica.optimizer.param_groups:
                    group["lr"] = 0.02 / own_steps
            if job.step(loss):  # else the step was undone, or more micro-batches follow
                average.update(net)
            own_steps += 1
            in_epoch += 1
            if shape == "noise" and job.workers == 2:
                with torch.no_grad():
                    next(net.parameters()).add_(torch.rand(()) * (1 + is_second))
            job.state["steps"] = int(job.steps)
            wait_for_workers(job)
            if job.workers < 2:
                continue
            if shape == "break" and is_second and in_epoch == 3:
                break
            if shape == "return" and is_second and own_steps == 5:
                return
            if shape == "stop" and not is_second and own_steps >= 12:
                job.stop()
        if shape == "break" and epoch > 12 and job.workers == 2:
            return
    return


def main() -> None:
    net = build()
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    job = ones.join(net, opt, Samples(64), batch_size=16)
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
