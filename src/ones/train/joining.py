"""`ones.join`: makes an `ElasticJob` of a script's model, optimizer and dataset."""

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
from ones.train.device import find_device
from ones.train.elastic_group import ElasticGroup
from ones.train.elastic_job import ElasticJob, SchedulerStep
from ones.train.learning_rate import LearningRate, Rule, optimizer_name, rule_for
from ones.train.loading import Loader, LoaderOptions, to_device
from ones.train.memory import is_out_of_memory
from ones.train.progress import TrainingProgress
from ones.train.rehearsal import Rehearse, rehearse, share_compile_cache
from ones.train.replica import Replica
from ones.train.sampler import BatchPartition
from ones.train.worker_context import WorkerContext
from ones.wire.environment import WorkerEnvironment
from ones.wire.messages import Joined, MemoryLimit

_joined = False  # a worker process belongs to one elastic job
_MMAP_THRESHOLD = 32 << 20  # bytes: the maximum that glibc accepts


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
    rehearsal: Rehearse | None = None,
) -> ElasticJob:
    """Makes a training script elastic. Under plain `python`: an ordinary loop on one device.

    The learning rate of `optimizer` is that for `batch_size`. It changes with the batch by
    `lr_rule` ("linear" for SGD, "sqrt" for the Adam family, "none", or a function of
    batch/batch_size) and rises over `lr_ramp_steps`. `scheduler` is stepped after each epoch,
    or with `scheduler_step="step"` once per `batch_size` samples: do not call it yourself.
    `max_local_batch`: samples that fit one device; larger batches are accumulated.
    `min_local_batch`: default 2 for models with batch norm, which cannot train on one sample.
    `stop` ends a script under plain `python`; a job of the service has its own stop rule.
    `rehearsal`: the loss of one micro-batch, as `lambda batch: loss_fn(model(batch[0]), batch[1])`.
    A new worker calls it and runs backward before others wait for it, so that torch.compile, cuDNN
    and memory allocation do not slow the first step down. The results are thrown away.
    """
    _check_arguments(model, optimizer, scheduler, scheduler_step)
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
        progress=TrainingProgress(seed=seed),
    )
    device = find_device()
    environment = WorkerEnvironment.from_env(os.environ)
    context: WorkerContext | None = None

    def warm_up() -> None:
        if rehearsal is not None:
            most = min(batch_size, max_local_batch or batch_size)
            sizes = sorted({most, max(2, minimum, most // 2)}, reverse=True)
            rehearse(model, rehearsal, lambda n: to_device(loader.first(n), device), sizes, device)

    if environment is not None:
        _join_once()
        context = WorkerContext(
            environment,
            replica,
            device=device,
            dataset_size=loader.size,
            limit=max_local_batch,
            minimum=minimum,
        )
        _keep_freed_memory()
        share_compile_cache(environment.job_dir)
        _handle_sigterm(context)
        context.controller.start()
        if device.type == "cpu":
            replica.warm_up()
            warm_up()
        context.report(
            Joined(
                dataset_size=loader.size,
                base_batch=batch_size,
                optimizer=optimizer_name(optimizer),
                parameter_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
                max_local_batch=max_local_batch,
            )
        )
        if device.type != "cpu":
            # the next group is not connected before the rehearsal is over
            context.set_entering(rehearsal is not None)
            # before that, another worker uses the GPU
            context.wait_for_order(connected=rehearsal is None)
    model.to(device)
    if context is not None and device.type != "cpu":
        warm_up()
        context.set_entering(False)
    elastic = None
    if context is not None:
        elastic = ElasticGroup(context, Buckets(list(model.parameters())))
    partition = BatchPartition(
        shares=(batch_size,), micro_steps=(1,), rank=0, limit=max_local_batch, minimum=minimum
    )
    job = ElasticJob(
        replica,
        loader,
        partition,
        device=device,
        scheduler_step=scheduler_step,
        stop=stop,
        elastic=elastic,
    )
    if elastic is not None:
        elastic.enter()
        _handle_exit(job, elastic.context)
    return job


def _check_arguments(
    model: object, optimizer: object, scheduler: object, scheduler_step: str
) -> None:
    if isinstance(optimizer, list | tuple | dict):
        raise UserError("ones.join takes one optimizer: several are not supported")
    if not isinstance(optimizer, Optimizer):
        raise UserError(f"optimizer {type(optimizer).__name__} is not a torch.optim.Optimizer")
    if not isinstance(model, nn.Module):
        raise UserError(f"model {type(model).__name__} is not a torch.nn.Module")
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise UserError(
            f"model is wrapped in {type(model).__name__}: pass the model itself, ones.join"
            " synchronises the workers"
        )
    if any(type(m).__name__ == "FullyShardedDataParallel" for m in model.modules()) or any(
        hasattr(p, "device_mesh") for p in model.parameters()
    ):
        raise UserError(
            "model is sharded (FSDP or DTensor), which is not supported: every worker needs the"
            " whole model; submit the script without ones.join to run it at a fixed size"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UserError("optimizer LBFGS is not supported: it needs a closure")
    own = {id(p) for p in model.parameters()}
    for group in optimizer.param_groups:
        if any(id(p) not in own for p in group["params"]):
            raise UserError("optimizer has parameters that are not the model's")
    if scheduler is not None and getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise UserError("scheduler belongs to another optimizer")
    if scheduler_step not in ("epoch", "step"):
        raise UserError(f"scheduler_step {scheduler_step!r} is not epoch or step")


def _join_once() -> None:
    global _joined  # noqa: PLW0603 the state of this process
    if _joined:
        raise UserError(
            "ones.join was called twice in one script: a job trains one model; submit the second"
            " training as a job of its own"
        )
    _joined = True


def _keep_freed_memory() -> None:
    """Keeps glibc from returning freed gradients to the kernel: it costs up to 10 % of a step."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, mmap_threshold = -1, -3
    mallopt(trim_threshold, 2_000_000_000)
    mallopt(mmap_threshold, _MMAP_THRESHOLD)


def _handle_sigterm(context: WorkerContext) -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # else the script handles it
        signal.signal(signal.SIGTERM, context.terminate)


def _handle_exit(job: ElasticJob, context: WorkerContext) -> None:
    """At the end of the script reports that it is done or, if memory ran out, the limit."""
    failed = False
    previous = sys.excepthook

    def excepthook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        nonlocal failed
        failed = True
        limit = job.memory_limit() if is_out_of_memory(error) else None
        if limit is not None:
            context.report_memory_limit(limit)
            context.report(MemoryLimit(limit))
        previous(kind, error, trace)

    def at_exit() -> None:
        if context.has_left:
            return
        if failed:
            context.close()
        else:
            context.finish(done=True)

    sys.excepthook = excepthook
    atexit.register(at_exit)
