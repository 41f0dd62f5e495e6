"""An `Accelerator` with an elastic training loop. Two lines of a script change:

    from ones.integrations.accelerate import Accelerator  # instead of: from accelerate
    ...
    for epoch in accelerator.epochs(n):  # instead of: for epoch in range(n)

`prepare`, `accumulate`, `backward`, `clip_grad_norm_`, `save_state` and the prepared objects are
used as before. The first shuffled DataLoader that is prepared (or the first one at all) is the
training data; its batch size times `gradient_accumulation_steps` is the batch that the learning
rate belongs to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import accelerate
import torch
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, SequentialSampler

from ones.errors import UserError
from ones.integrations.position import Accumulation, Position, clip, options_of, show_rank
from ones.train import join
from ones.train.elastic_job import ElasticJob


class Accelerator(accelerate.Accelerator):
    """As `accelerate.Accelerator`, for a job of any number of workers.

    `scheduler_step="epoch"`: the script steps its schedule once for each epoch. `join`: options
    of `ones.join`, such as `lr_rule` or `seed`.
    """

    def __init__(
        self,
        *args: Any,
        scheduler_step: Literal["step", "epoch"] = "step",
        join: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        if self.num_processes > 1:
            raise UserError(
                "the script runs under torchrun or accelerate launch: start it with python, and"
                " ONES starts its workers"
            )
        self.scheduler_step = scheduler_step
        self._join_options = join or {}
        self._job: ElasticJob | None = None
        self._training: ElasticLoader | None = None
        self._resumed: tuple[int, int] | None = None  # epoch, and batches to leave out
        self.is_complete = False  # the gradients are those of the whole batch, of all workers

    # preparing

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        if self._training is None:
            loaders = [item for item in args if isinstance(item, DataLoader)]
            shuffled = [item for item in loaders if not isinstance(item.sampler, SequentialSampler)]
            for loader in (shuffled or loaders)[:1]:
                self._training = ElasticLoader(self, loader)
        return super().prepare(*args, device_placement=device_placement)

    def prepare_data_loader(self, data_loader: Any, *args: Any, **options: Any) -> Any:
        training = self._training
        if training is not None and data_loader in (training, training.dataloader):
            return training
        return super().prepare_data_loader(data_loader, *args, **options)

    def prepare_optimizer(self, optimizer: Any, device_placement: bool | None = None) -> Any:
        prepared = ElasticOptimizer(self, optimizer)
        self._optimizers.append(prepared)
        return prepared

    def prepare_scheduler(self, scheduler: Any) -> Any:
        prepared = ElasticScheduler(self, scheduler, self._optimizers)
        self._schedulers.append(prepared)
        return prepared

    @property
    def job(self) -> ElasticJob:
        """The job, once model, optimizer and training data are prepared."""
        if self._job is None:
            self._job = self._joined()
        return self._job

    def _joined(self) -> ElasticJob:
        if self._training is None or not self._models or not self._optimizers:
            raise UserError(
                "accelerator.prepare needs the model, the optimizer and the training DataLoader"
                " before the training loop"
            )
        if len(self._models) > 1 or len(self._optimizers) > 1 or len(self._schedulers) > 1:
            raise UserError(
                f"accelerator.prepare got {len(self._models)} models and {len(self._optimizers)}"
                " optimizers: ones.integrations.accelerate takes one of each; use ones.join"
            )
        loader, accumulated = self._training.dataloader, self.gradient_accumulation_steps
        options = dict(self._join_options)
        if accumulated > 1:
            options.setdefault("max_local_batch", loader.batch_size)
        job = join(
            self._models[0],
            self._optimizers[0].optimizer,
            scheduler=self._schedulers[0].scheduler if self._schedulers else None,
            scheduler_step=self.scheduler_step,
            scaler=self.scaler,
            **options,
        )
        job.also(**{f"object{n}": item for n, item in enumerate(self._custom_objects)})
        data = options_of(loader, "Accelerate")
        batch = data.pop("batch_size")
        if self._resumed is not None:
            epoch, skipped = self._resumed
            per_epoch = -(-len(loader) // accumulated)
            steps = epoch * per_epoch + skipped // accumulated
            Position(job).resume(steps=steps, epoch=epoch, offset=skipped * batch)
        job.loader(loader.dataset, batch * accumulated, **data)
        self._accumulation = Accumulation(job, batch, accumulated)
        return job

    # the loop

    def epochs(self, count: int, start: int = 0) -> Iterator[int]:
        """Takes the place of `range(start, count)` in the loop over epochs."""
        if self._job is None and start:
            self._resumed = (start, self._resumed[1] if self._resumed else 0)
        for epoch in self.job.epochs(count):
            self._show_rank()
            yield epoch
        self._show_rank()

    def _show_rank(self) -> None:
        show_rank(self.job, self.state, accelerate.PartialState())

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """Continues within an epoch, after `load_state`. Call it before `epochs`."""
        if dataloader is not self._training:
            return super().skip_first_batches(dataloader, num_batches)
        if self._job is None:
            self._resumed = (self._resumed[0] if self._resumed else 0, num_batches)
        return dataloader

    def batch_begins(self) -> None:
        self._show_rank()
        self.is_complete = False
        self.gradient_state._set_sync_gradients(not self.job.accumulate())

    @contextlib.contextmanager
    def accumulate(self, *models: nn.Module) -> Iterator[None]:
        """Micro-batches are those of the job: gradients are synchronised with the last one."""
        yield

    def backward(self, loss: Tensor, **_: Any) -> None:
        """Counts a last step with fewer batches in proportion to them, as Accelerate does: it
        divides each loss by `gradient_accumulation_steps`."""
        job, accumulation = self.job, self._accumulation
        self.is_complete = job._run.stepper.backward(
            loss, accumulation.weight, "accelerator.backward", scale=accumulation.filled
        )

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        if not self.is_complete:
            return None  # as Accelerate: there is nothing to clip before the last micro-batch
        return clip(self.job, parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        if self.is_complete:
            self.unscale_gradients()
            torch.nn.utils.clip_grad_value_(parameters, clip_value)

    # files

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Adds objects: checkpoints keep their state, and workers that join receive it."""
        first = len(self._custom_objects)
        super().register_for_checkpointing(*objects)
        if self._job is not None:
            self._job.also(**{f"object{first + n}": item for n, item in enumerate(objects)})

    def save_state(self, output_dir: str | None = None, **options: Any) -> Any:
        """Writes the state in one worker."""
        return super().save_state(output_dir, **options) if self.is_main_process else output_dir


class ElasticLoader:
    """The training data: iterate over it in the loop over `accelerator.epochs(n)`."""

    def __init__(self, accelerator: Accelerator, dataloader: DataLoader[Any]) -> None:
        self._accelerator, self.dataloader = accelerator, dataloader
        self.dataset, self.batch_size = dataloader.dataset, dataloader.batch_size

    def __len__(self) -> int:
        """Batches of an epoch at the DataLoader's own batch size."""
        return len(self.dataloader)

    def __iter__(self) -> Iterator[Any]:
        job = self._accelerator.job
        if not job._run.loop._is_running:
            raise UserError(
                "the training data is read outside of `for epoch in accelerator.epochs(n):`; write"
                " this loop instead of the one over range(n)"
            )
        for batch in job.batches():
            self._accelerator.batch_begins()
            yield batch


class ElasticOptimizer(AcceleratedOptimizer):
    """Updates the parameters when the gradients of all workers are complete."""

    def __init__(self, accelerator: Accelerator, optimizer: Any) -> None:
        super().__init__(optimizer, device_placement=accelerator.device_placement)
        self._accelerator = accelerator

    def step(self, closure: None = None) -> None:
        if closure is not None:
            raise UserError("optimizer.step(closure) is not supported")
        if self._accelerator.is_complete:
            self._accelerator.is_complete = False
            self._accelerator.job.update()

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Does nothing: the job drops the gradients after each update."""


class ElasticScheduler(AcceleratedScheduler):
    """Steps with the samples of the job, at any batch."""

    def __init__(self, accelerator: Accelerator, scheduler: LRScheduler, optimizers: Any) -> None:
        super().__init__(scheduler, optimizers)
        self._accelerator = accelerator

    def step(self, *args: Any, **options: Any) -> None:
        """Does nothing: the job steps the schedule, for each batch or epoch of the script."""
        job = self._accelerator.job
        in_batch = job._run.stepper._step is not None
        expected = self._accelerator.scheduler_step
        if in_batch != (expected == "step"):
            other = "step" if in_batch else "epoch"
            raise UserError(
                f"the script steps its schedule once per {'batch' if in_batch else 'epoch'}: write"
                f" Accelerator(scheduler_step={other!r})"
            )
