"""The training loop of a script, made elastic: the result of `ones.join`.

    for epoch in job.epochs(30):
        for x, y in job.batches():
            job.step(loss_fn(model(x), y))
        job.report(accuracy=evaluate(model))

Under plain `python`, without a controller, this is an ordinary loop on one device.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from msgspec import ValidationError, convert
from torch import Tensor
from torch.optim import Optimizer

from ones.errors import UserError
from ones.stopping import StopRule
from ones.train.arguments import check_scheduler
from ones.train.elastic_group import ElasticGroup
from ones.train.evaluation import mean_over_workers, shard_of
from ones.train.job_reports import JobReports
from ones.train.optimizer_set import OptimizerSet, optimizers_of
from ones.train.optimizer_step import OptimizerStepper
from ones.train.replica import Replica
from ones.train.sampler import BatchPartition, StepSlice
from ones.train.schedules import Schedule
from ones.train.script_exit import handle_exit
from ones.train.script_files import load_file, save_file
from ones.train.script_guard import ScriptGuard
from ones.train.several_optimizers import SeveralStepper
from ones.train.stream_loader import AnyLoader
from ones.train.training_loop import TrainingLoop
from ones.wire.messages import TrackerLink
from ones.wire.work import Unit

SchedulerStep = Literal["epoch", "step"]


class StepCount(int):
    """The number of optimizer steps so far; called with a total, a loop."""

    loop: Callable[[Unit, int], Iterator[Any]]

    def __call__(
        self, total: int | None = None, *, samples: int | None = None, tokens: int | None = None
    ) -> Iterator[Any]:
        totals = {Unit.STEPS: total, Unit.SAMPLES: samples, Unit.TOKENS: tokens}
        given = [(unit, count) for unit, count in totals.items() if count is not None]
        if len(given) != 1:
            raise UserError("job.steps needs one of: a number of steps, samples=..., tokens=...")
        return self.loop(*given[0])

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)  # files have a plain number


torch.serialization.add_safe_globals([int])  # such a number in a file read with weights_only


@dataclass(frozen=True, slots=True)
class Entry:
    """What a job has from the moment that it knows its data."""

    loader: AnyLoader
    partition: BatchPartition
    base_batch: int
    elastic: ElasticGroup | None  # None: without a controller


@dataclass(frozen=True, slots=True)
class _Running:
    entry: Entry
    loop: TrainingLoop
    stepper: OptimizerStepper
    reports: JobReports


class JobLoader:
    """The training data of a job: iterate over it in a loop over `job.epochs(n)`."""

    def __init__(self, job: ElasticJob, entry: Entry) -> None:
        self._job, self._loader = job, entry.loader
        self.batch_size, self.dataset = entry.base_batch, entry.loader.dataset

    def __len__(self) -> int:
        """Steps of an epoch at the script's own batch size, as of a DataLoader."""
        if not self._loader.has_size:
            raise TypeError("the training data is a stream: its length is not known")
        return (self._loader.size + self.batch_size - 1) // self.batch_size

    def __iter__(self) -> Iterator[Any]:
        return self._job.batches()


class ElasticJob:
    """A training script's handle on its job. Made by `ones.join`."""

    def __init__(
        self,
        replica: Replica,
        *,
        device: torch.device,
        enter: Callable[..., Entry],
        scheduler_step: SchedulerStep = "epoch",
        stop: StopRule | None = None,
    ) -> None:
        self.device = device
        self._replica, self._progress = replica, replica.progress
        self._enter, self._stop_rule = enter, stop
        self._schedule = Schedule(replica, scheduler_step)
        self._guard = ScriptGuard(optimizers_of(replica.optimizer))
        self._running: _Running | None = None
        self._reported: dict[str, float] = {}
        self._started = time.monotonic()
        self._before = (0, 0.0)  # base steps and seconds before the last step
        self._seconds_before = 0.0

    # the data and the loops

    def loader(
        self, dataset: Any = None, batch_size: int | None = None, **options: Any
    ) -> JobLoader:
        """The training data of the job: a dataset or stream with a batch size, or a DataLoader.

        Options are those of `ones.join`. With no dataset: the one that `ones.join` got.
        """
        if dataset is not None:
            if self._running is not None:
                raise UserError(
                    "the job has its training data: for evaluation use a DataLoader of your own,"
                    " and job.shard(dataset) to divide the work"
                )
            self._start(self._enter(dataset, batch_size, **options))
        return JobLoader(self, self._run.entry)

    def schedule(self, scheduler: Any, *, step: SchedulerStep = "epoch") -> None:
        """The learning rate schedule, if it needs `len(job.loader())`: else give it to `join`."""
        if self._replica.scheduler is not None:
            raise UserError("the job has a schedule already")
        check_scheduler(scheduler, optimizers_of(self._replica.optimizer), step)
        self._replica.set_scheduler(scheduler)
        self._schedule.set(scheduler, step)

    def epochs(self, count: int, *, start: int | None = None) -> Iterator[int]:
        """Yields the epochs 0 to `count` - 1; a joining worker starts at the current one.

        `start`: the first epoch, where a script resumes from a checkpoint of its own.
        """
        if count < 1:
            raise UserError(f"epochs {count} is not at least 1")
        if start is not None and start < 0:
            raise UserError(f"start {start} is below 0")
        for epoch in self._run.loop.epochs(
            count, self._run.entry.loader.options.start_epoch if start is None else start
        ):
            self._reported = {}
            yield epoch

    def batches(self) -> Iterator[Any]:
        """Yields the rest of the epoch in micro-batches, on `job.device`."""
        self._run.reports.start_epoch()
        return self._run.loop.batches()

    @property
    def steps(self) -> StepCount:
        """Optimizer steps so far. `for batch in job.steps(total)` trains for `total` steps.

        The loop counts steps of the script's own batch size, in one pass over the data after the
        other: it ends after as many samples as `total` steps of the script without ONES.
        `job.steps(samples=n)` and `job.steps(tokens=n)` count these instead; tokens are what the
        script gives as `weight=` in each step, and the step that reaches the total is the last.
        """
        count = StepCount(self._progress.step)
        count.loop = self._loop_over
        return count

    def _loop_over(self, unit: Unit, total: int) -> Iterator[Any]:
        if total < 1:
            raise UserError(f"{unit} {total} is not at least 1")
        run, progress = self._run, self._progress
        progress.unit, progress.total, progress.epochs = unit.value, total, None
        if unit is Unit.STEPS:
            full, rest = divmod(total, run.loop.steps_per_epoch)
            run.reports.start(full * run.entry.loader.size + rest * run.entry.base_batch)
        elif unit is Unit.SAMPLES:
            run.reports.start(total)
        return run.loop.work()

    def stop(self) -> None:
        """Ends the training on all workers: the current batch is the last one."""
        self._run.loop.stop()

    # a step

    def step(self, loss: Tensor, *, clip: float | None = None, weight: float | None = None) -> bool:
        """Backward; with the last micro-batch also all-reduce, clip, optimizer step, zero_grad.

        `weight`: number of valid targets in this micro-batch, if the loss ignores some; pass it
        in every step or in none. Returns True if the parameters were updated.
        """
        stepper = self._run.stepper
        stepper.backward(loss, weight, call="job.step")
        return stepper.update(clip)

    def backward(
        self, loss: Tensor, *, weight: float | None = None, retain_graph: bool = False
    ) -> bool:
        """The first part of `step`: computes gradients, and sums them over all workers.

        Returns True with the last micro-batch of a step: the gradients in `p.grad` are then those
        of the whole batch on all workers. A batch may have several losses.
        """
        return self._run.stepper.backward(loss, weight, retain_graph=retain_graph)

    def update(self, optimizer: Optimizer | None = None, *, clip: float | None = None) -> bool:
        """The second part of `step`: clip, optimizer step and zero_grad.

        `optimizer`: the one to update, if the job has several.

        Does nothing before the last micro-batch of a step. Returns True if the parameters were
        updated.
        """
        return self._run.stepper.update(clip, optimizer)

    def accumulate(self) -> bool:
        """Whether more micro-batches of this step follow, so that gradients only add up."""
        return self._run.stepper.is_accumulating

    @property
    def is_filler(self) -> bool:
        """Whether the batch does not count, as this worker has no samples in a short last step.

        It runs the same code as the other workers, with samples that another one trains on.
        """
        return self._run.stepper.is_filler

    def skip(self) -> None:
        """Does not train on this batch, or drops its gradients after `backward`."""
        self._run.stepper.skip()

    # what is known

    @property
    def is_main(self) -> bool:
        """True in one worker of the job: the one that prints and writes files."""
        return self._rank == 0

    @property
    def workers(self) -> int:
        return len(self._run.loop.partition.shares)

    @property
    def batch(self) -> int:
        """Samples per optimizer step, of all workers together."""
        return self._run.loop.partition.batch

    @property
    def samples(self) -> int:
        """Samples that the job has trained on so far, those of earlier epochs included."""
        return self._progress.samples

    @property
    def tokens(self) -> int:
        """Valid targets that the job has trained on so far, as `weight=` of each step says."""
        return int(self._progress.tokens)

    @property
    def lr(self) -> float:
        """The learning rate of the next update: that of the schedule, scaled to the batch."""
        group = self._replica.optimizer.param_groups[0]
        return float(group["lr"]) * self._replica.rate.factor(self._progress.step)

    def every(self, *, steps: int | None = None, seconds: float | None = None) -> bool:
        """True once per `steps` steps of the script's own batch size, or `seconds` of training.

        It is the same on all workers. Call it after `step` or `update`.
        """
        if (steps is None) == (seconds is None):
            raise UserError("job.every needs steps=... or seconds=...")
        if not self._run.stepper.is_updated:
            return False
        before_steps, before_seconds = self._before
        if steps is not None:
            if steps < 1:
                raise UserError(f"steps {steps} is not at least 1")
            return self._progress.base_steps // steps > before_steps // steps
        assert seconds is not None
        if not seconds > 0.0:
            raise UserError(f"seconds {seconds} is not above 0")
        return self._progress.seconds // seconds > before_seconds // seconds

    def log(self, *values: object) -> None:
        """Prints in one worker only."""
        if self.is_main:
            print(*values, flush=True)

    # the script's own state and files

    @property
    def state(self) -> dict[str, Any]:
        """A dict for the script's scores and counters: plain values and tensors.

        Joining workers receive it, and checkpoints keep it.
        """
        return self._replica.script.values

    def also(self, **objects: Any) -> None:
        """Objects with `state_dict` and `load_state_dict` (an average of the model, a metric).

        Joining workers receive their state, and checkpoints keep it.
        """
        self._replica.script.add(objects)

    def save(self, path: str | os.PathLike[str], **extra: Any) -> None:
        """Writes model, optimizer, schedule and `extra` in plain torch format, in one worker."""
        if self.is_main:
            save_file(self._replica, path, extra)

    def load(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Starts from a file of `save` or a plain `state_dict`; returns what the file has.

        A job that has trained already keeps its own state.
        """
        return load_file(self._replica, path)

    def link(self, url: str) -> None:
        """Shows the address of the job's run in a tracker on its page. Main worker only."""
        try:
            found = convert({"url": url}, TrackerLink, strict=True)
        except ValidationError:
            raise UserError(
                f"link {url!r} is not an http or https address of printable ASCII characters"
            ) from None
        if self._elastic is not None and self.is_main:
            self._elastic.context.report(found)

    # evaluation

    def shard(self, dataset: Any) -> Any:
        """This worker's part of a dataset or DataLoader, for an evaluation by all workers."""
        return shard_of(dataset, self._rank, self.workers)

    def mean(self, value: Tensor | float, *, weight: float = 1.0) -> float:
        """The mean over all workers, weighted (by samples, say). All workers must call it."""
        return mean_over_workers(self._elastic, value, weight)

    def report(self, *, accuracy: float | None = None, **values: float) -> None:
        """Reports results of this epoch. All workers call it; the values of the main one count."""
        if accuracy is not None:
            values["accuracy"] = accuracy
        self._reported.update({name: float(value) for name, value in values.items()})

    def memory_limit(self) -> int | None:
        """The samples that fit, estimated after memory ran out in the current step."""
        return None if self._running is None else self._running.stepper.memory_limit()

    def end_script(self) -> None:
        """Called at the end of the script: a loop that it has left ends on all workers."""
        if self._running is not None:
            self._running.loop.end_script()

    # events of the loop

    def settles(self) -> None:
        elastic = self._elastic
        if elastic is not None and elastic.has_pending_change and not elastic.is_over:
            self._run.reports.report_speed()  # what was measured so far is of the present layout

    def checkpoint_begun(self) -> None:
        self._run.reports.start_epoch()

    def data_ended(self, epoch: int) -> None:
        self._schedule.data_ended(epoch)

    def epoch_ended(self, epoch: int) -> bool:
        progress, reports = self._progress, self._run.reports
        if progress.epoch == epoch:  # else the state received is beyond it
            if not self._schedule.epoch_ended(epoch, self._reported, self._elastic):
                return False
            progress.end_epoch()
        if progress.total is not None:
            return True
        progress.last.accuracy = self._reported.get("accuracy")
        if self._elastic is not None:
            reports.report_speed()
            reports.report_epoch(is_pass=True)
            if self._elastic.context.save_if_due(epoch_ends=True):
                self.checkpoint_begun()
        elif reports.is_stopped():
            self._run.loop.is_stopped = True
        return True

    # within

    @property
    def _run(self) -> _Running:
        if self._running is None:
            raise UserError(
                "the job has no training data: pass dataset= and batch_size= to ones.join, or call"
                " job.loader(dataset, batch_size) first"
            )
        return self._running

    @property
    def _elastic(self) -> ElasticGroup | None:
        return None if self._running is None else self._running.entry.elastic

    @property
    def _rank(self) -> int:
        return 0 if self._elastic is None else self._elastic.rank

    def _start(self, entry: Entry) -> None:
        elastic = entry.elastic
        has_several = isinstance(self._replica.optimizer, OptimizerSet)
        stepper = (SeveralStepper if has_several else OptimizerStepper)(
            self._replica, self.device, elastic, self._after_step, self._guard
        )
        loop = TrainingLoop(
            entry.loader,
            entry.partition,
            self._progress,
            stepper,
            self._guard,
            self._schedule,
            base_batch=entry.base_batch,
            device=self.device,
            elastic=elastic,
            events=self,
            has_micro_batches=not has_several,
        )
        reports = JobReports(
            self._replica,
            stepper,
            elastic,
            self._stop_rule,
            has_unknown_size=not entry.loader.has_size,
        )
        self._running = _Running(entry, loop, stepper, reports)
        if elastic is not None:
            elastic.context.on_switched.append(self._on_switched)
            with self._guard.allowed():  # repeats steps of the others
                elastic.enter()
            handle_exit(self, elastic.context)

    def _on_switched(self, was_first: bool) -> None:
        elastic, run = self._elastic, self._run
        assert elastic is not None
        layout = elastic.context.layout
        assert layout is not None
        run.reports.reset(layout)
        run.loop.take_partition()
        self._seconds_before = self._progress.seconds
        if elastic.rank == 0 and not was_first and self._progress.last.steps:
            run.reports.report_epoch()  # the former rank 0 may have been lost before it reported

    def _after_step(self, part: StepSlice, loss: float) -> None:
        progress, loop = self._progress, self._run.loop
        self._before = progress.base_steps, self._seconds_before
        progress.base_steps += loop.base_steps_at(part.end) - loop.base_steps_at(part.start)
        progress.samples += part.total
        if self._elastic is None:
            progress.seconds = time.monotonic() - self._started
        self._seconds_before = progress.seconds
        if not math.isfinite(loss):
            self._run.reports.warn_of_loss(loss)
        if progress.unit == Unit.TOKENS and not progress.weighted:
            raise UserError(
                "job.steps(tokens=...) needs the number of tokens in each batch:"
                " job.step(loss, weight=number)"
            )
        self._schedule.after_step()
        self._run.reports.after_step(part)
        if self._run.reports.has_reached_limit():
            loop.is_stopped = True
        if progress.end_part():
            progress.last.accuracy = self._reported.get("accuracy")
            self._run.reports.report_speed()
            self._run.reports.report_epoch()
