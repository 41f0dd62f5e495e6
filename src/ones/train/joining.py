"""`ones.join`: from a script's plain objects to a `Job`."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from ones.errors import UserError
from ones.stopping import StopRule
from ones.train.buckets import Buckets
from ones.train.crew import Crew
from ones.train.job import Job, SchedulerStep
from ones.train.learning_rate import LearningRate, Rule, family, rule_for
from ones.train.loading import Loader, LoaderOptions
from ones.train.place import Place
from ones.train.progress import Progress
from ones.train.replica import Replica
from ones.train.sampler import Division
from ones.wire.environment import WorkerEnvironment
from ones.wire.messages import Joined, MemoryLimit

_MAPPED_ALONE = 32 << 20  # bytes: blocks from here on glibc maps and gives back one by one


def join(
    model: nn.Module,
    optimizer: Optimizer,
    dataset: Any,
    batch_size: int,
    *,
    scheduler: Any = None,
    scheduler_step: SchedulerStep = "epoch",
    scaler: GradScaler | None = None,
    max_local_batch: int | None = None,
    min_local_batch: int | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    num_workers: int = 0,
    worker_init_fn: Callable[[int], None] | None = None,
    pin_memory: bool = False,
    shuffle: bool = True,
    seed: int = 0,
    lr_rule: str | Rule | None = None,
    lr_ramp_steps: int = 20,
    stop: StopRule | None = None,
) -> Job:
    """Make a training script elastic. Under plain `python`: an ordinary loop on one device.

    The learning rate of `optimizer` is taken as right for `batch_size`; it follows the
    batch by `lr_rule` ("linear" for SGD, "sqrt" for the Adam family, "none", or a
    function of batch/batch_size) and rises over `lr_ramp_steps`. `scheduler` is stepped
    after each epoch, or with `scheduler_step="step"` once per `batch_size` samples: do not
    call it yourself. `max_local_batch` samples fit one device; what exceeds them is
    accumulated. `min_local_batch` is 2 for models with batch norm, which cannot take one.
    `stop` ends a script that runs alone; a job of the service has its own.
    """
    _check(model, optimizer, scheduler, scheduler_step)
    for name, value in (
        ("batch_size", batch_size),
        ("max_local_batch", max_local_batch),
        ("min_local_batch", min_local_batch),
    ):
        if value is not None and value < 1:
            raise UserError(f"{name} {value} is not at least 1")
    options = LoaderOptions(
        collate_fn=collate_fn,
        num_workers=num_workers,
        worker_init_fn=worker_init_fn,
        pin_memory=pin_memory,
    )
    loader = Loader(dataset, options, seed=seed, shuffle=shuffle)
    has_norm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
    minimum = min_local_batch or (2 if has_norm else 1)
    rate = LearningRate(rule_for(optimizer, lr_rule), batch_size, lr_ramp_steps)
    replica = Replica(
        model,
        optimizer,
        scheduler=scheduler,
        scaler=scaler,
        rate=rate,
        progress=Progress(seed=seed),
    )
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    environment = WorkerEnvironment.from_env(os.environ)
    place: Place | None = None
    if environment is not None:
        place = Place(
            environment,
            replica,
            device=device,
            dataset_size=loader.size,
            limit=max_local_batch,
            minimum=minimum,
        )
        _keep_freed_memory()
        _on_terminate(place)
        place.agent.start()
        if device.type == "cpu":
            replica.warm_up()
        place.say(
            Joined(
                dataset_size=loader.size,
                base_batch=batch_size,
                optimizer=family(optimizer),
                parameter_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
                max_local_batch=max_local_batch,
            )
        )
        if device.type != "cpu":
            place.wait_for_order()  # only then is the GPU ours
    model.to(device)
    crew = None if place is None else Crew(place, Buckets(list(model.parameters())))
    division = Division(
        shares=(batch_size,), micro_steps=(1,), rank=0, limit=max_local_batch, minimum=minimum
    )
    job = Job(
        replica,
        loader,
        division,
        device=device,
        scheduler_step=scheduler_step,
        stop=stop,
        crew=crew,
    )
    if crew is not None:
        crew.take_place()
        _at_exit(job, crew.place)
    return job


def _check(model: object, optimizer: object, scheduler: object, scheduler_step: str) -> None:
    if isinstance(optimizer, list | tuple | dict):
        raise UserError("ones.join takes one optimizer; several are not supported")
    if not isinstance(optimizer, Optimizer):
        raise UserError(f"optimizer {type(optimizer).__name__} is not a torch.optim.Optimizer")
    if not isinstance(model, nn.Module):
        raise UserError(f"model {type(model).__name__} is not a torch.nn.Module")
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise UserError(
            f"model is wrapped in {type(model).__name__}: give the plain one, ones.join does that"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UserError("optimizer LBFGS needs a closure, which job.step does not offer")
    own = {id(p) for p in model.parameters()}
    for group in optimizer.param_groups:
        if any(id(p) not in own for p in group["params"]):
            raise UserError("optimizer has parameters that are not the model's")
    if scheduler is not None and getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise UserError("scheduler belongs to another optimizer")
    if scheduler_step not in ("epoch", "step"):
        raise UserError(f"scheduler_step {scheduler_step!r} is not epoch or step")


def _keep_freed_memory() -> None:
    """glibc gives each step's freed gradients back to the kernel, which has to clear them again:
    up to 10 % of a step. It takes no higher limit for blocks that it would map alone."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, mmap_threshold = -1, -3
    mallopt(trim_threshold, 2_000_000_000)
    mallopt(mmap_threshold, _MAPPED_ALONE)


def _on_terminate(place: Place) -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # else the script has its own ideas
        signal.signal(signal.SIGTERM, place.terminate)


def _at_exit(job: Job, place: Place) -> None:
    failed = False
    shown = sys.excepthook

    def excepthook(
        kind: type[BaseException], problem: BaseException, trace: TracebackType | None
    ) -> None:
        nonlocal failed
        failed = True
        if _is_out_of_memory(problem):
            _tell_limit(job, place)
        shown(kind, problem, trace)

    def goodbye() -> None:
        if not place.has_parted:
            if failed:
                place.fall()
            else:
                place.part(done=True)

    sys.excepthook = excepthook
    atexit.register(goodbye)


def _is_out_of_memory(problem: BaseException) -> bool:
    if isinstance(problem, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(problem, RuntimeError) and "can't allocate memory" in str(problem)


def _tell_limit(job: Job, place: Place) -> None:
    """So many samples were too many: half of them, or what has proven to fit, will do."""
    limit = job.memory_limit()
    if limit is None:
        return
    place.limit_is(limit)
    place.say(MemoryLimit(limit))
