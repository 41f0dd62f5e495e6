"""Makes a Hugging Face `Trainer` elastic with one line:

    trainer = Trainer(model=model, args=args, train_dataset=data, ...)
    elastic(trainer)
    trainer.train()

The Trainer's own loss, callbacks, evaluation, logging and checkpoints stay; the loop around them is
that of a ONES job. `global_step` counts steps of the batch size of the arguments
(`per_device_train_batch_size` x `gradient_accumulation_steps`), whatever batch the job has.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from transformers import ProgressCallback, Trainer
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import TrainOutput

from ones.errors import UserError
from ones.integrations.position import Accumulation, Position, clip, options_of, show_rank
from ones.train import join
from ones.train.elastic_job import ElasticJob


def elastic(trainer: Trainer, **options: Any) -> Trainer:
    """Makes the training of this Trainer elastic. Call it before `trainer.train()`.

    `options`: those of `ones.join`, such as `lr_rule`, `max_local_batch` or `seed`.
    """
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise UserError(
            "the Trainer uses FSDP or DeepSpeed, which is not supported: every worker needs the"
            " whole model; submit the script without ones to run it at a fixed size"
        )
    if trainer.args.world_size > 1:
        raise UserError(
            "the script runs under torchrun or accelerate launch: start it with python, and"
            " ONES starts its workers"
        )
    trainer.args.auto_find_batch_size = False  # ONES learns what fits into memory
    loop = _Loop(trainer, options)
    trainer._inner_training_loop = loop.run
    trainer._save_checkpoint = loop.save_checkpoint
    return trainer


class _Loop:
    """The training loop of a Trainer."""

    def __init__(self, trainer: Trainer, options: dict[str, Any]) -> None:
        self._trainer, self._options = trainer, options
        self._save = trainer._save_checkpoint  # of the Trainer, or of its subclass
        self._job: ElasticJob | None = None
        self._divides: bool | None = None  # the loss is divided by the number of items
        self._scale = 1.0  # of the losses of the current step

    def run(
        self,
        batch_size: int | None = None,
        args: Any = None,
        resume_from_checkpoint: str | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Takes the place of `Trainer._inner_training_loop`."""
        trainer = self._trainer
        trainer.accelerator.free_memory()
        with _own_dataloader(trainer):
            loader = trainer.get_train_dataloader()
        epochs, updates, _, samples, _, _, total = trainer.set_initial_training_values(args, loader)
        begin, skipped = trainer._init_training_state(
            total, updates, epochs, resume_from_checkpoint, trial
        )
        model, _ = trainer._prepare_for_training(total, loader, resume_from_checkpoint)
        job = self._join(model)
        data = options_of(loader, "Trainer")
        own_batch = data.pop("batch_size")
        self._position = Position(job)
        if resume_from_checkpoint is not None:
            steps = trainer.state.global_step
            self._position.resume(steps=steps, epoch=begin, offset=skipped * own_batch)
        self._begin()
        job.loader(loader.dataset, own_batch * args.gradient_accumulation_steps, **data)
        self._accumulation = Accumulation(job, own_batch, args.gradient_accumulation_steps)
        self._show_rank()
        trainer.control = trainer.callback_handler.on_train_begin(
            args, trainer.state, trainer.control
        )
        if args.eval_on_start and not self._position.steps:
            trainer._evaluate(trial, ignore_keys_for_eval, skip_scheduler=True)
        after = (model, trial, ignore_keys_for_eval)
        if total == epochs * updates:
            for _ in job.epochs(epochs):
                self._epoch_begins()
                for inputs in job.batches():
                    self._train(inputs, after)
                    if trainer.control.should_epoch_stop:
                        break
                self._epoch_ends(after)
        else:
            self._train_steps(total, after)
        self._show_rank()
        return trainer._finalize_training(trial, samples, self._started)

    def _train_steps(self, total: int, after: tuple[Any, ...]) -> None:
        """Trains for a number of steps that is not that of whole epochs."""
        assert self._job is not None
        epoch = None
        for inputs in self._job.steps(total):
            if epoch != self._position.epoch:
                if epoch is not None:
                    self._epoch_ends(after)
                self._epoch_begins()
                epoch = self._position.epoch
            self._train(inputs, after)
        self._epoch_ends(after)

    def _join(self, model: Any) -> ElasticJob:
        """Joins with the Trainer's optimizer and schedule, without Accelerate's wrappers."""
        trainer, args = self._trainer, self._trainer.args
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        schedule = trainer.lr_scheduler
        if schedule.optimizer is not optimizer:  # made for the wrapper
            saved, trainer.lr_scheduler = schedule.state_dict(), None
            schedule = trainer.create_scheduler(trainer.state.max_steps, optimizer)
            schedule.load_state_dict(saved)
            for group, rate in zip(optimizer.param_groups, schedule.get_last_lr(), strict=True):
                group["lr"] = rate
        trainer.optimizer = optimizer
        for name in ("optimizer", "lr_scheduler"):
            setattr(trainer.callback_handler, name, getattr(trainer, name))
        self._has_plateau = isinstance(schedule, ReduceLROnPlateau) or not hasattr(
            schedule, "get_last_lr"
        )
        options: dict[str, Any] = {"seed": args.data_seed or args.seed, **self._options}
        if args.gradient_accumulation_steps > 1:
            options.setdefault("max_local_batch", trainer._train_batch_size)
        self._job = job = join(
            model,
            optimizer,
            scheduler=None if self._has_plateau else schedule,
            scheduler_step="step",
            scaler=trainer.accelerator.scaler,
            **options,
        )
        if self._has_plateau:  # the Trainer steps it with the metric of its evaluation
            job.also(lr_scheduler=schedule)
        job.also(trainer=_TrainerState(trainer))
        trainer.accelerator.backward = self._backward
        trainer.current_gradient_accumulation_steps = 1
        return job

    def _begin(self) -> None:
        trainer = self._trainer
        self._started = time.time()
        self._rate = 0.0  # of the last update
        self._items: torch.Tensor | None = None  # valid labels of the micro-batch
        self._is_complete, self._is_in_step = False, False
        trainer._initial_num_input_tokens_seen = trainer.state.num_input_tokens_seen
        trainer._initial_global_step = trainer.state.global_step
        trainer._tr_loss = torch.tensor(0.0, device=trainer.args.device)
        trainer._total_loss_scalar = 0.0
        trainer._globalstep_last_logged = trainer.state.global_step

    # a micro-batch

    def _train(self, inputs: Any, after: tuple[Any, ...]) -> None:
        trainer, job = self._trainer, self._job
        assert job is not None
        args, handler = trainer.args, trainer.callback_handler
        is_last = not job.accumulate()
        trainer.accelerator.gradient_state._set_sync_gradients(is_last)
        if not self._is_in_step:
            self._show_rank()
            trainer.control = handler.on_step_begin(args, trainer.state, trainer.control)
        items = trainer._get_num_items_in_batch([inputs], args.device)
        if torch.is_tensor(items) and self._divides is None:
            items = items.float().requires_grad_()  # shows whether the loss depends on it
        self._items, self._is_complete, self._is_in_step = items, False, not is_last
        trainer.training_step(after[0], inputs, items)
        trainer.current_flos += float(trainer.floating_point_ops(inputs))
        trainer._track_num_input_tokens(inputs)
        if not is_last:
            trainer.control = handler.on_substep_end(args, trainer.state, trainer.control)
            return
        if self._is_complete:
            self._update(after)

    def _backward(self, loss: torch.Tensor, **_: Any) -> None:
        """Takes the place of `Accelerator.backward`.

        The Trainer gives a loss the number of items of the whole batch to divide by. One that does
        not use it is a mean, and the Trainer adds those of a step up, as many as accumulate.
        """
        assert self._job is not None
        accumulation, items, sums = self._accumulation, self._items, 1.0
        if self._divides is None:
            self._divides = items is not None and depends(loss, items)
        weight = float(items) if self._divides and items is not None else accumulation.weight
        if not self._divides and self._adds_up(items):
            sums = self._trainer.args.gradient_accumulation_steps * accumulation.filled
        self._scale = sums
        self._is_complete = self._job._run.stepper.backward(
            loss, weight, "accelerator.backward", scale=sums
        )

    def _adds_up(self, items: Any) -> bool:
        """Whether the Trainer takes the loss as divided already, as in its `training_step`."""
        trainer = self._trainer
        said = getattr(trainer, "loss_is_scaled_for_ga", None)
        if said is not None:
            return bool(said)
        accepts = trainer.model_accepts_loss_kwargs and items is not None
        return bool(accepts or trainer.compute_loss_func is not None)

    def _update(self, after: tuple[Any, ...]) -> None:
        trainer, job, position = self._trainer, self._job, self._position
        assert job is not None
        current = job._run.stepper._step
        assert current is not None
        assert current.reduced is not None
        # the mean over all workers, in the scale of the Trainer's log
        loss = torch.tensor(current.reduced[1] * self._scale, device=trainer.args.device)
        args, handler, norm = trainer.args, trainer.callback_handler, None
        if args.max_grad_norm > 0:
            norm = clip(job, after[0].parameters(), args.max_grad_norm)
        trainer.control = handler.on_pre_optimizer_step(args, trainer.state, trainer.control)
        before, self._rate = position.steps, job.lr
        job.update()
        trainer.control = handler.on_optimizer_step(args, trainer.state, trainer.control)
        steps = position.steps - before  # none, or several, if the batch is not the script's own
        if args.logging_nan_inf_filter and not torch.isfinite(loss):
            loss = trainer._tr_loss / (1 + before - trainer._globalstep_last_logged)
        trainer._tr_loss += loss * steps
        trainer.state.epoch = position.epochs
        for step in range(before + 1, before + steps + 1):
            trainer.state.global_step = step
            trainer.control = handler.on_step_end(args, trainer.state, trainer.control)
        self._log_save_evaluate(norm, after)
        if trainer.control.should_training_stop:
            job.stop()

    # epochs

    def _epoch_begins(self) -> None:
        trainer = self._trainer
        trainer.control = trainer.callback_handler.on_epoch_begin(
            trainer.args, trainer.state, trainer.control
        )

    def _epoch_ends(self, after: tuple[Any, ...]) -> None:
        trainer = self._trainer
        trainer.control = trainer.callback_handler.on_epoch_end(
            trainer.args, trainer.state, trainer.control
        )
        self._log_save_evaluate(None, after)
        if trainer.control.should_training_stop:
            assert self._job is not None
            self._job.stop()

    def _log_save_evaluate(self, norm: torch.Tensor | None, after: tuple[Any, ...]) -> None:
        trainer, (model, trial, ignored) = self._trainer, after
        assert self._job is not None
        known = len(trainer.state.log_history)
        trainer._maybe_log_save_evaluate(
            trainer._tr_loss,
            norm,
            model,
            trial,
            self._position.epoch,
            ignored,
            self._started,
            learning_rate=self._rate,
        )
        for entry in trainer.state.log_history[known:]:
            found = {
                key.removeprefix("eval_"): value for key, value in entry.items() if "eval_" in key
            }
            if "accuracy" in found:
                self._job.report(accuracy=float(found["accuracy"]))
            if "loss" in found:
                self._job.report(eval_loss=float(found["loss"]))

    def save_checkpoint(self, model: Any, trial: Any) -> None:
        """Takes the place of `Trainer._save_checkpoint`: one worker writes the files."""
        trainer = self._trainer
        if self._job is None or self._job.is_main:
            self._save(model, trial)
        elif trainer.state.best_global_step:
            name = f"checkpoint-{trainer.state.best_global_step}"
            trainer.state.best_model_checkpoint = f"{trainer._get_output_dir(trial=trial)}/{name}"

    def _show_rank(self) -> None:
        """Lets Trainer and Accelerate know which worker prints and writes files."""
        trainer, job = self._trainer, self._job
        assert job is not None
        show_rank(job, trainer.args.distributed_state, trainer.accelerator.state)
        was_main = trainer.state.is_world_process_zero
        trainer.state.is_local_process_zero = trainer.state.is_world_process_zero = job.is_main
        if job.is_main and not was_main:
            for callback in trainer.callback_handler.callbacks:
                if isinstance(callback, ProgressCallback) and callback.training_bar is None:
                    callback.on_train_begin(trainer.args, trainer.state, trainer.control)


def depends(loss: torch.Tensor, value: Any) -> bool:
    """Whether a loss was computed with this value."""
    if not (torch.is_tensor(value) and value.requires_grad and loss.requires_grad):
        return False
    (found,) = torch.autograd.grad(loss, value, retain_graph=True, allow_unused=True)
    return found is not None


class _TrainerState:
    """What a joining worker needs of the Trainer: its state, callbacks and sums for the log."""

    _SUMS = (
        "_total_loss_scalar",
        "_globalstep_last_logged",
        "_initial_global_step",
        "current_flos",
    )

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        state = dataclasses.asdict(trainer.state)
        for name in ("is_local_process_zero", "is_world_process_zero", "stateful_callbacks"):
            del state[name]
        exported = [c.state() for c in self._exportable()]
        sums = {name: getattr(trainer, name, 0.0) for name in self._SUMS}
        loss = float(getattr(trainer, "_tr_loss", 0.0))
        return {"state": state, "callbacks": exported, "sums": sums, "loss": loss}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        trainer = self._trainer
        for name, value in saved["state"].items():
            setattr(trainer.state, name, value)
        for callback, state in zip(self._exportable(), saved["callbacks"], strict=True):
            for name, value in state["attributes"].items():
                setattr(callback, name, value)
            if callback is trainer.control:
                for name, value in state["args"].items():
                    setattr(callback, name, value)
        for name, value in saved["sums"].items():
            setattr(trainer, name, value)
        trainer._tr_loss = torch.tensor(saved["loss"], device=trainer.args.device)

    def _exportable(self) -> list[Any]:
        handler = self._trainer.callback_handler
        found = [*handler.callbacks, self._trainer.control]
        return [item for item in found if isinstance(item, ExportableState)]


@contextmanager
def _own_dataloader(trainer: Trainer) -> Iterator[None]:
    """Within, the Trainer's DataLoaders are torch's own, without Accelerate's wrapper."""
    accelerator = trainer.accelerator
    accelerator.prepare_data_loader = lambda loader, *_, **__: loader
    try:
        yield
    finally:
        del accelerator.prepare_data_loader
