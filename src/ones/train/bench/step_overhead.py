"""Steps of an elastic job and of DistributedDataParallel in turns, in the same processes.

Runs under `ones bench overhead` as an elastic job of a fixed number of workers. Each worker has two
copies of a model: one joined, one wrapped by DDP over a group of its own. Blocks of steps of both
alternate. Per block and worker, one line: CPU seconds of the whole process and wall seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, TensorDataset

import ones
from ones.train.bench.models import make_model
from ones.train.elastic_job import ElasticJob

WARM_UP = 5  # pairs that do not count


class ElasticSteps:
    """The loop of a script, one step per call."""

    def __init__(self, job: ElasticJob, model: nn.Module, loss: nn.Module) -> None:
        self._job, self._model, self._loss = job, model, loss
        self._batches = self._forever()

    def _forever(self) -> Iterator[Any]:
        for _ in self._job.epochs(1_000_000):
            yield from self._job.batches()

    def step(self) -> None:
        x, y = next(self._batches)
        self._job.step(self._loss(self._model(x), y))


class DistributedSteps:
    """DDP with its fastest settings and data in memory."""

    def __init__(self, model: nn.Module, data: TensorDataset, loss: nn.Module, batch: int) -> None:
        self._model: nn.Module = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self._optimizer = _optimizer(model)
        self._data, self._loss, self._batch = data, loss, batch
        self._batches = self._forever()

    def _forever(self) -> Iterator[Any]:
        sampler: DistributedSampler[Any] = DistributedSampler(self._data)
        for epoch in range(1_000_000):
            sampler.set_epoch(epoch)
            for picked in torch.split(torch.as_tensor(list(sampler)), self._batch):
                if len(picked) == self._batch:
                    yield [tensor[picked] for tensor in self._data.tensors]

    def step(self) -> None:
        x, y = next(self._batches)
        self._loss(self._model(x), y).backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


class CallTimer:
    """Sums the CPU time of this thread in calls that only an elastic job makes."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self, owner: Any, *names: str) -> None:
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            began = time.thread_time()
            result = call(*args, **options)
            self.seconds += time.thread_time() - began
            return result

        return timed


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def _block(step: Callable[[], None], steps: int) -> tuple[float, float]:
    dist.barrier()
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(steps):
        step()
    return (time.process_time() - cpu) / steps, (time.perf_counter() - wall) / steps


def _cost_of_elasticity(job: ElasticJob, elastic: ElasticSteps, steps: int) -> float:
    """CPU seconds per step for notices, reports, gradient noise and undoing a step."""
    timer = CallTimer()
    group = job._elastic
    assert group is not None
    timer.watch(group, "notices", "handle_notices", "after_step")
    timer.watch(job._run.stepper, "begin", "_measure_noise")
    timer.watch(job._run.stepper.noise, "add_workers")
    timer.watch(job._run.reports.reporter, "after_step")
    timer.watch(group.buckets, "_add_square", "squared_norm")
    for _ in range(steps):
        elastic.step()
    return timer.seconds / steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--pairs", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    ours = make_model(args.model)
    theirs = deepcopy(ours.model)
    job = ones.join(
        ours.model, _optimizer(ours.model), ours.data, batch_size=ours.local_batch * args.workers
    )
    rank = 0 if job._elastic is None else job._elastic.rank
    dist.init_process_group(
        "gloo", init_method=f"file://{args.out}/meet", rank=rank, world_size=args.workers
    )
    elastic = ElasticSteps(job, ours.model, ours.loss)
    rival = DistributedSteps(theirs, ours.data, ours.loss, ours.local_batch)
    with (args.out / f"{rank}.jsonl").open("w") as file:
        for pair in range(-WARM_UP, args.pairs):
            found = {}
            ways = [("ours", elastic.step), ("rival", rival.step)]
            for name, step in ways if pair % 2 else reversed(ways):
                # backward and optimizer of DDP are not the job's
                with job._guard.allowed() if step == rival.step else nullcontext():
                    found[f"{name}_cpu"], found[f"{name}_wall"] = _block(step, args.steps)
            if pair >= 0:
                file.write(json.dumps(found) + "\n")
        dist.barrier()
        steps = max(40, 10 * args.steps)  # gradient noise is measured every 10 or 40 steps
        cost = _cost_of_elasticity(job, elastic, steps)
        file.write(json.dumps({"elastic": cost}) + "\n")
    (args.out / f"{rank}.done").touch()
    while True:  # the benchmark kills this process: DDP's group must not close first
        time.sleep(60)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
