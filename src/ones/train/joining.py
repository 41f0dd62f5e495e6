"""`ones.join`: makes an `ElasticJob` of a script's model, optimizer and dataset."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ones.errors import UserError
from ones.stopping import StopRule
from ones.train.arguments import check_arguments
from ones.train.buckets import Buckets
from ones.train.compiled_sizes import mark_batch
from ones.train.device import find_device
from ones.train.elastic_group import ElasticGroup
from ones.train.elastic_job import ElasticJob, Entry, SchedulerStep
from ones.train.learning_rate import LearningRate, Rule, optimizer_name, rule_for
from ones.train.loading import Loader, LoaderOptions, to_device
from ones.train.optimizer_set import OptimizerSet, optimizers_of
from ones.train.progress import TrainingProgress
from ones.train.rehearsal import Rehearse, rehearse, share_compile_cache
from ones.train.replica import Replica
from ones.train.sampler import BatchPartition
from ones.train.script_samplers import options_of_dataloader
from ones.train.stream_loader import AnyLoader, StreamLoader
from ones.train.streams import is_stream
from ones.train.worker_context import WorkerContext
from ones.wire.environment import WorkerEnvironment
from ones.wire.messages import Joined

_joined = False  # a worker process belongs to one elastic job
_MMAP_THRESHOLD = 32 << 20  # bytes: the maximum that glibc accepts


def join(
    model: nn.Module | Sequence[nn.Module],
    optimizer: Optimizer | Sequence[Optimizer],
    dataset: Any = None,
    batch_size: int | None = None,
    *,
    scheduler: Any = None,
    scheduler_step: SchedulerStep = "epoch",
    scaler: GradScaler | None = None,
    max_local_batch: int | None = None,
    min_local_batch: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
    lr_rule: str | Rule | None = None,
    lr_ramp_steps: int = 20,
    stop: StopRule | None = None,
    rehearsal: Rehearse | None = None,
    **loading: Any,
) -> ElasticJob:
    """Makes a training script elastic. Under plain `python`: an ordinary loop on one device.

    Several models and optimizers: `ones.join([g, d], [opt_g, opt_d], ...)`, then
    `job.backward(loss)` and `job.update(optimizer)` instead of `job.step(loss)`.
    The learning rate of `optimizer` is that for `batch_size`. It changes with the batch by
    `lr_rule` ("linear" for SGD, "sqrt" for the Adam family, "none", or a function of
    batch/batch_size) and rises over `lr_ramp_steps`. `scheduler` is stepped after each epoch,
    or with `scheduler_step="step"` once per `batch_size` samples: do not call it yourself.
    `dataset`: a map-style dataset, a stream (an IterableDataset, an iterable, or a function that
    returns one), or a DataLoader, which brings its batch size and options. It may be given later:
    `job.loader(dataset, batch_size)`.
    `max_local_batch`: samples that fit one device; larger batches are accumulated.
    `min_local_batch`: default 2 for models with batch norm, which cannot train on one sample.
    `stop` ends a script under plain `python`; a job of the service has its own stop rule.
    `rehearsal`: the loss of one micro-batch, as `lambda batch: loss_fn(model(batch[0]), batch[1])`.
    A new worker calls it and runs backward before others wait for it, so that torch.compile, cuDNN
    and memory allocation do not slow the first step down. The results are thrown away.
    `loading`: collate_fn, num_workers, worker_init_fn, pin_memory, sampler, batch_sampler and
    drop_last as in DataLoader, start_epoch, and for a stream `samples`: those of an epoch, if
    known.
    """
    whole, optimizers = check_arguments(
        model, optimizer, scheduler, scheduler_step, max_local_batch
    )
    for name, value in (("max_local_batch", max_local_batch), ("min_local_batch", min_local_batch)):
        _check_size(name, value)
    has_norm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in whole.modules())
    joining = _Joining(
        Replica(
            whole,
            optimizers,
            scheduler=scheduler,
            scaler=scaler if scaler is not None and scaler.is_enabled() else None,
            rate=LearningRate(rule_for(optimizers_of(optimizers)[0], lr_rule), 1, lr_ramp_steps),
            progress=TrainingProgress(seed=seed),
        ),
        device=find_device(),
        limit=max_local_batch,
        minimum=min_local_batch or (2 if has_norm else 1),
        rehearsal=rehearsal,
        options={"seed": seed, "shuffle": shuffle, **loading},
    )
    if dataset is None and (loading or batch_size is not None):
        raise UserError("ones.join has options for a dataset, and no dataset")
    if joining.environment is not None:
        _join_once()
    job = ElasticJob(
        joining.replica,
        device=joining.device,
        enter=joining.enter,
        scheduler_step=scheduler_step,
        stop=stop,
    )
    if dataset is not None:
        job.loader(dataset, batch_size)
    return job


class _Joining:
    """Connects a job to its controller once its data is known."""

    def __init__(
        self,
        replica: Replica,
        *,
        device: torch.device,
        limit: int | None,
        minimum: int,
        rehearsal: Rehearse | None,
        options: dict[str, Any],
    ) -> None:
        self.replica, self.device = replica, device
        self._limit, self._minimum, self._options = limit, minimum, options
        self._rehearsal = rehearsal
        self.environment = WorkerEnvironment.from_env(os.environ)

    def enter(self, dataset: Any, batch_size: int | None, **options: Any) -> Entry:
        progress = self.replica.progress
        loader, base_batch = make_loader(dataset, batch_size, self._options | options, progress)
        replica, elastic = self.replica, None
        replica.rate.base_batch = base_batch
        if self.environment is not None:
            context = self._connect(self.environment, loader, base_batch)
            first = optimizers_of(replica.optimizer)[0]  # of several, each has its buckets
            trained = [p for group in first.param_groups for p in group["params"]]
            has_several = isinstance(replica.optimizer, OptimizerSet)
            buckets = Buckets(trained if has_several else list(replica.model.parameters()))
            elastic = ElasticGroup(context, buckets)
        else:
            replica.model.to(self.device)
        partition = BatchPartition(
            shares=(base_batch,), micro_steps=(1,), rank=0, limit=self._limit, minimum=self._minimum
        )
        return Entry(loader, partition, base_batch, elastic)

    def _connect(
        self, environment: WorkerEnvironment, loader: AnyLoader, base_batch: int
    ) -> WorkerContext:
        replica, device = self.replica, self.device
        context = WorkerContext(
            environment,
            replica,
            device=device,
            dataset_size=loader.size,
            limit=self._limit,
            minimum=self._minimum,
        )
        _keep_freed_memory()
        share_compile_cache(environment.job_dir)
        _handle_sigterm(context)
        context.controller.start()
        if device.type == "cpu":
            replica.warm_up()
            self._rehearse(loader, base_batch)
        parameters = replica.model.parameters()
        context.description = Joined(
            dataset_size=loader.described_size,
            base_batch=base_batch,
            optimizer=optimizer_name(optimizers_of(replica.optimizer)[0]),
            parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
            max_local_batch=self._limit,
        )
        context.report(context.description)
        if device.type != "cpu":
            # the next group is not connected before the rehearsal is over
            context.set_entering(self._rehearsal is not None)
            # before that, another worker uses the GPU
            context.wait_for_order(connected=self._rehearsal is None)
        replica.model.to(device)
        if device.type != "cpu":
            self._rehearse(loader, base_batch)
            context.set_entering(False)
        return context

    def _rehearse(self, loader: AnyLoader, base_batch: int) -> None:
        if self._rehearsal is None:
            return
        most = min(base_batch, self._limit or base_batch)
        sizes = sorted({most, max(2, self._minimum, most // 2)}, reverse=True)
        rehearse(
            self.replica.model,
            self._rehearsal,
            lambda count: mark_batch(to_device(loader.first(count), self.device), count),
            sizes,
            self.device,
        )


def make_loader(
    dataset: Any, batch_size: int | None, options: dict[str, Any], progress: TrainingProgress
) -> tuple[AnyLoader, int]:
    """The loader of a job's data, and the batch size of the script."""
    seed, shuffle = options.pop("seed"), options.pop("shuffle")
    if isinstance(dataset, DataLoader):
        given = options_of_dataloader(dataset)
        own_batch, shuffle = given.pop("batch_size"), given.pop("shuffle", shuffle)
        twice = sorted(set(options) & set(given))
        if twice:
            raise UserError(f"{twice[0]} is given twice: to ones.join and to the DataLoader")
        if own_batch is None:  # a batch sampler that does not tell
            own_batch = batch_size
        if batch_size not in (None, own_batch):
            raise UserError(f"batch_size is {batch_size}, and {own_batch} in the DataLoader")
        dataset, batch_size, options = dataset.dataset, own_batch, given | options
    if batch_size is None:
        raise UserError("batch_size is missing: the one that the learning rate was tuned for")
    _check_size("batch_size", batch_size)
    unknown = sorted(set(options) - set(LoaderOptions.__dataclass_fields__))
    if unknown:
        raise UserError(f"{unknown[0]} is not an option of ones.join")
    made = LoaderOptions(**options)
    if is_stream(dataset):
        stream = StreamLoader(dataset, made, progress=progress, batch_size=batch_size)
        return stream, batch_size
    return Loader(dataset, made, seed=seed, shuffle=shuffle, batch_size=batch_size), batch_size


def _check_size(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise UserError(f"{name} {value} is not at least 1")


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
