"""The position of a job, as the loops of other libraries count it."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, IterableDataset

from ones.errors import UserError
from ones.train.elastic_job import ElasticJob
from ones.train.script_samplers import options_of_dataloader


class Position:
    """Counts of a job in steps of the script's own batch size, and its place in the epoch."""

    def __init__(self, job: ElasticJob) -> None:
        self._job, self._progress = job, job._progress

    @property
    def steps(self) -> int:
        return self._progress.base_steps

    @property
    def epoch(self) -> int:
        return self._progress.epoch

    @property
    def epochs(self) -> float:
        """Epochs, with the part of the current one."""
        return self._progress.epoch + self._progress.offset / self._job._run.entry.loader.size

    def resume(self, *, steps: int, epoch: int, offset: int) -> None:
        """Continues at the position of a checkpoint of the library. Call it before `job.loader`:
        a job that has trained keeps its own position."""
        progress = self._progress
        progress.base_steps = progress.schedule_steps = steps
        progress.epoch = progress.schedule_epochs = epoch
        progress.offset = offset


def options_of(loader: DataLoader[Any], library: str) -> dict[str, Any]:
    """Batch size and options of `ones.join`, for a loader of samples that can be indexed."""
    if isinstance(loader.dataset, IterableDataset):
        raise UserError(
            f"a streaming dataset is not supported with {library}: give a dataset with __len__ and"
            " __getitem__, or train with ones.join, which takes streams"
        )
    options = options_of_dataloader(loader)
    if "batch_sampler" in options:
        raise UserError(
            f"a batch sampler is not supported with {library}: give a sampler of single samples, or"
            " train with ones.join"
        )
    return options


class Accumulation:
    """What micro-batches count in a loop that accumulates `count` batches of `batch` samples.

    Such a loop adds up the mean losses of its batches, whatever their sizes. A short last batch
    counts as much as a full one, so each of its samples counts more. The job may divide the samples
    otherwise; what a sample counts stays the same.
    """

    def __init__(self, job: ElasticJob, batch: int, count: int) -> None:
        self._job, self._batch, self._count = job, batch, count

    @property
    def weight(self) -> float | None:
        """Of the current micro-batch: its samples, and more if they are of a short last batch.

        A micro-batch with samples of both kinds gets the right sum of their weights.
        """
        if self._count == 1:
            return None
        run = self._job._run
        step, size = run.stepper._step, run.entry.loader.size
        assert step is not None
        part = step.part
        if part.is_filler:
            return 0.0
        first = part.first + sum(part.micro_batches[: step.index])
        end = first + part.micro_batches[step.index]
        rest = size % self._batch
        short = max(0, end - max(first, size - rest))  # samples of the short last batch
        return end - first - short + (short * self._batch / rest if short else 0)

    @property
    def filled(self) -> float:
        """The part of the `count` batches that the current step has: below 1 at ends of epochs."""
        if self._count == 1:
            return 1.0
        run = self._job._run
        step = run.stepper._step
        assert step is not None
        batches = -(-step.part.total // self._batch)
        return min(1.0, batches * self._batch / run.loop.partition.batch)


def clip(job: ElasticJob, parameters: Any, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Clips complete gradients and returns their norm. Call it between backward and update."""
    replica = job._replica
    if replica.scaler is not None:
        replica.scaler.unscale_(replica.optimizer)
    return clip_grad_norm_(parameters, max_norm, norm_type)


def show_rank(job: ElasticJob, *states: Any) -> None:
    """Lets Accelerate know which worker prints and writes files."""
    rank = 0 if job.is_main else 1
    for state in states:
        state.process_index = state.local_process_index = rank
