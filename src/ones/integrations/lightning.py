"""A Lightning strategy for elastic training:

    import ones.integrations.lightning
    ...
    Trainer(strategy="ones", ...).fit(model, loader)

The module's `training_step`, optimizer, schedule, callbacks, loggers and checkpoints stay. The
batch size of the training DataLoader times `accumulate_grad_batches` is the batch that the learning
rate belongs to; `global_step` counts steps of that size, whatever batch the job has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loops.fetchers import _DataFetcher
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import SingleDeviceStrategy, StrategyRegistry
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch import Tensor
from torch.utils.data import DataLoader

from ones.errors import UserError
from ones.integrations.position import Accumulation, Position, options_of
from ones.train import join
from ones.train.elastic_job import ElasticJob

_ENDLESS = 1_000_000  # epochs of Trainer(max_epochs=-1)


class OnesStrategy(SingleDeviceStrategy):
    """Trains on the GPU of this worker, together with the other workers of the job.

    `options`: those of `ones.join`, such as `lr_rule` or `seed`.
    """

    strategy_name = "ones"
    #: `optimizer_step` is called for each micro-batch
    handles_gradient_accumulation = True

    def __init__(self, device: Any = None, **options: Any) -> None:
        own = {
            name: options.pop(name)
            for name in ("accelerator", "checkpoint_io", "precision_plugin")
            if name in options
        }
        usual = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        super().__init__(device or usual, **own)
        self._options = options
        self.job: ElasticJob | None = None
        self._batches: _Batches | None = None

    @property
    def is_global_zero(self) -> bool:
        return self.job is None or self.job.is_main

    # set-up

    def setup(self, trainer: Trainer) -> None:
        super().setup(trainer)
        if trainer.state.fn is TrainerFn.FITTING:
            self._trainer = trainer
            self._check()
            trainer.callbacks.append(_Reports(self))

    def _check(self) -> None:
        trainer, module = self._trainer, self.lightning_module
        assert module is not None
        if not module.automatic_optimization:
            raise UserError("strategy ones needs automatic_optimization = True")
        if len(self.optimizers) != 1 or len(self.lr_scheduler_configs) > 1:
            raise UserError(
                f"the module has {len(self.optimizers)} optimizers and"
                f" {len(self.lr_scheduler_configs)} schedules: strategy ones takes one of each"
            )
        for config in self.lr_scheduler_configs:
            if config.frequency != 1:
                raise UserError(f"schedule with frequency {config.frequency}: only 1 is supported")
        if trainer.val_check_interval != 1.0 or trainer.reload_dataloaders_every_n_epochs:
            raise UserError(
                "val_check_interval and reload_dataloaders_every_n_epochs are not supported:"
                " validate at the end of epochs"
            )

    def on_train_start(self) -> None:
        super().on_train_start()
        trainer, module = self._trainer, self.lightning_module
        assert module is not None
        loop, epochs = trainer.fit_loop, trainer.fit_loop.epoch_loop
        loaders = loop._combined_loader.flattened if loop._combined_loader else []
        if len(loaders) != 1 or not isinstance(loaders[0], DataLoader):
            raise UserError("strategy ones needs one training DataLoader")
        accumulated, options = trainer.accumulate_grad_batches, dict(self._options)
        if accumulated > 1:
            options.setdefault("max_local_batch", loaders[0].batch_size)
        config = self.lr_scheduler_configs[0] if self.lr_scheduler_configs else None
        self.job = job = join(
            module,
            self.optimizers[0],
            scheduler=config.scheduler if config else None,
            scheduler_step="step" if config and config.interval == "step" else "epoch",
            scaler=getattr(self.precision_plugin, "scaler", None),
            **options,
        )
        position = Position(job)
        resumed = loop.epoch_progress.current.processed
        position.resume(steps=trainer.global_step, epoch=resumed, offset=0)
        job.also(lightning=_LoopState(trainer))
        data = options_of(loaders[0], "Lightning")
        batch = data.pop("batch_size")
        job.loader(loaders[0].dataset, batch * accumulated, **data)
        self._accumulation = Accumulation(job, batch, accumulated)
        limit = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else _ENDLESS
        self._batches = _Batches(job, position, trainer, limit)
        # Lightning's loop takes its batches, and what it asks about them, from the job
        loop._data_fetcher, loop.max_batches = self._batches, math.inf
        trainer.val_check_batch = math.inf
        epochs._should_accumulate = lambda: self._batches is not None and self._batches.accumulates
        epochs.update_lr_schedulers = lambda *_, **__: None  # the job steps the schedule
        epochs.automatic_optimization._make_zero_grad_fn = lambda *_: None  # so does `update`

    def on_train_end(self) -> None:
        super().on_train_end()
        if self._batches is not None:
            self._batches.close()

    # a micro-batch

    def backward(self, closure_loss: Tensor, optimizer: Any, *args: Any, **options: Any) -> Tensor:
        module, plugin = self.lightning_module, self.precision_plugin
        assert module is not None
        assert self.job is not None
        assert self._batches is not None
        # not the plugin's own: the job scales the loss
        loss = Precision.pre_backward(plugin, closure_loss, module)
        # Lightning has divided it by accumulate_grad_batches, also in a last step with fewer
        accumulation = self._accumulation
        self._batches.is_complete = self.job._run.stepper.backward(
            loss * self._trainer.accumulate_grad_batches,
            accumulation.weight,
            "backward",
            scale=accumulation.filled,
        )
        return Precision.post_backward(plugin, loss, module)

    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **options: Any
    ) -> Any:
        job, batches, plugin = self.job, self._batches, self.precision_plugin
        assert job is not None
        assert batches is not None
        result = closure()
        if result is None:  # the module skips this batch
            job.skip()
        elif batches.is_complete:
            scaler = getattr(plugin, "scaler", None)
            if scaler is not None:
                scaler.unscale_(optimizer)
            plugin._after_closure(model or self.lightning_module, optimizer)
            job.update()
            batches.updated()
        return result


class _Batches(_DataFetcher):
    """Gives Lightning's loop the micro-batches of the job."""

    def __init__(self, job: ElasticJob, position: Position, trainer: Trainer, epochs: int) -> None:
        super().__init__()
        self._job, self._position, self._trainer = job, position, trainer
        self._epochs = job.epochs(epochs)
        self._iterator: Iterator[Any] | None = None
        self._ahead: list[Any] = []
        self.accumulates = False
        self.is_complete = False  # the gradients are those of the whole batch, of all workers

    def setup(self, combined_loader: Any) -> None:
        """The job has the data."""

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> tuple[Any, int, int]:
        if self._iterator is None:
            next(self._epochs)  # StopIteration: the job is over
            self._iterator = self._job.batches()
        batch = self._ahead.pop() if self._ahead else next(self._iterator, None)
        if batch is None:
            self._iterator, self.done = None, True
            raise StopIteration
        job = self._job
        step = job._run.stepper._step
        assert step is not None
        self.accumulates, self.is_complete = job.accumulate(), False
        self.done = not self.accumulates and step.part.end >= job._run.entry.loader.size
        self.fetched += 1
        rank_zero_only.rank = 0 if job.is_main else 1
        return batch, self.fetched - 1, 0

    def reset(self) -> None:
        self.fetched, self.done = 0, False

    def teardown(self) -> None:
        self.reset()

    def updated(self) -> None:
        """Call after an update: ends the epoch's data, so that the module is validated."""
        progress = self._trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress
        # one less: Lightning counts this update itself
        progress.optimizer.step.total.completed = self._position.steps - 1
        if not self.done or self._iterator is None:
            return
        more = next(self._iterator, None)
        if more is None:
            self._iterator = None
        else:  # a worker was lost, and its samples are trained on again
            self._ahead.append(more)
            self.done = self._trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = False

    def close(self) -> None:
        """Ends the loop over epochs on all workers."""
        trainer, job = self._trainer, self._job
        if trainer.should_stop or trainer.fit_loop.epoch_loop._is_training_done:
            job.stop()
        for _ in self._epochs:
            job.stop()
        rank_zero_only.rank = 0 if job.is_main else 1


class _Reports(Callback):
    """Reports the metrics of each epoch."""

    def __init__(self, strategy: OnesStrategy) -> None:
        self._strategy = strategy

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        job = self._strategy.job
        assert job is not None
        found = {name: float(value) for name, value in trainer.callback_metrics.items()}
        for name in ("val_accuracy", "val_acc", "accuracy"):
            if name in found:
                job.report(accuracy=found[name])
                break
        losses = {name: found[name] for name in ("val_loss",) if name in found}
        config = next(iter(self._strategy.lr_scheduler_configs), None)
        if config is not None and config.monitor in found:
            losses = {"val_loss": found[config.monitor]}  # a plateau follows it
        job.report(**losses)


class _LoopState:
    """What a joining worker needs of Lightning: the loop's position, and the callbacks' state."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        loop = trainer.fit_loop
        callbacks = call._call_callbacks_state_dict(trainer)
        return {
            "epoch": loop.epoch_progress.current.processed,
            "steps": trainer.global_step,
            "batches": loop.epoch_loop._batches_that_stepped,
            "callbacks": [[name, state] for name, state in callbacks.items()],
            "directories": [getattr(c, "dirpath", None) for c in trainer.checkpoint_callbacks],
            "versions": [getattr(logger, "version", None) for logger in trainer.loggers],
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        trainer = self._trainer
        loop = trainer.fit_loop
        current = loop.epoch_progress.current
        current.ready = current.started = current.processed = current.completed = saved["epoch"]
        step = loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step
        step.total.ready = step.total.completed = saved["steps"]
        loop.epoch_loop._batches_that_stepped = saved["batches"]
        for callback, directory in zip(
            trainer.checkpoint_callbacks, saved["directories"], strict=True
        ):
            if directory is not None:
                callback.dirpath = directory
        call._call_callbacks_load_state_dict(trainer, {"callbacks": dict(saved["callbacks"])})
        for logger, version in zip(trainer.loggers, saved["versions"], strict=True):
            if version is not None and hasattr(logger, "_version"):
                logger._version = version  # one run, also if this worker writes it later


StrategyRegistry.register("ones", OnesStrategy, description="elastic training by ONES")
