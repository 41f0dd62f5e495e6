"""What a job reports to the controller, and the stop rule of a script that runs alone.

An epoch of the report is a pass over the data. In a loop over steps, samples or tokens it is a
twentieth of all.
"""

from __future__ import annotations

from ones.stopping import StopRule, after_epoch, after_work
from ones.train import logs
from ones.train.elastic_group import ElasticGroup
from ones.train.layout import GroupLayout
from ones.train.optimizer_step import OptimizerStepper
from ones.train.replica import Replica
from ones.train.reporting import Reporter
from ones.train.sampler import StepSlice
from ones.wire.bounds import MOST_EPOCHS, as_measure
from ones.wire.messages import Epoch
from ones.wire.work import Unit

_TOKEN_STEPS = 5  # after which the tokens of a sample are estimated
_TOKEN_ERROR = 0.1  # of that estimate, before it is reported again

_log = logs.logger(__name__)


class JobReports:
    def __init__(
        self,
        replica: Replica,
        stepper: OptimizerStepper,
        elastic: ElasticGroup | None,
        stop: StopRule | None,
        *,
        has_unknown_size: bool = False,
    ) -> None:
        self._has_unknown_size = has_unknown_size  # of an epoch, before the first has ended
        self._progress, self._stepper, self._elastic = replica.progress, stepper, elastic
        self._stop = stop
        self.reporter: Reporter | None = None
        if elastic is not None:
            context = elastic.context
            self.reporter = Reporter(context.report, context.device, lambda: context.limit)
        self._has_warned = False

    @property
    def _is_reporting(self) -> bool:
        elastic = self._elastic
        return elastic is not None and elastic.rank == 0 and elastic.context.layout is not None

    def after_step(self, part: StepSlice) -> None:
        elastic = self._elastic
        if elastic is None or elastic.context.layout is None:
            return
        self._describe_tokens()
        is_disturbed = elastic.after_step()
        if self._has_unknown_size and elastic.rank == 0 and self._progress.total is None:
            elastic.context.describe_larger(self._progress.offset)
        if elastic.rank == 0 and self.reporter is not None:
            self.reporter.after_step(
                elastic.context.layout,
                self._progress,
                max(part.micro_batches, default=0),
                self._stepper.noise.scale,
                is_disturbed=is_disturbed,
            )

    def start_epoch(self) -> None:
        """The next step is not timed: the script did something else before it."""
        if self.reporter is not None:
            self.reporter.start_epoch()
        if self._stepper.own_steps is not None:
            self._stepper.own_steps.forget_step()

    def reset(self, layout: GroupLayout) -> None:
        """Starts to time the steps of another layout."""
        if self.reporter is not None:
            self.reporter.reset(layout)
        if self._stepper.own_steps is not None:
            self._stepper.own_steps.reset()

    def warn_of_loss(self, loss: float) -> None:
        """Says once that the loss is no number: training has diverged."""
        if not self._has_warned and (self._elastic is None or self._elastic.rank == 0):
            self._has_warned = True
            _log.warning("the loss is %s at step %d", loss, self._progress.step)

    def report_speed(self) -> None:
        if self._is_reporting and self._elastic is not None and self.reporter is not None:
            assert self._elastic.context.layout is not None
            self.reporter.report_speed(self._elastic.context.layout)

    def start(self, total_samples: int | None) -> None:
        """Reports how large an epoch is, in a loop over steps: a part of all samples."""
        if self._is_reporting and self._elastic is not None and total_samples is not None:
            planned = self._progress.planned
            assert planned is not None
            self._elastic.context.describe_again(max(1, round(total_samples / planned)))

    def _describe_tokens(self) -> None:
        """Reports how many samples a part of a loop over tokens has, as far as is known."""
        progress = self._progress
        if progress.unit != Unit.TOKENS or not progress.tokens or not self._is_reporting:
            return
        assert self._elastic is not None
        assert progress.total is not None
        assert progress.planned is not None
        known = self._elastic.context.description
        part = progress.total * progress.samples / progress.tokens / progress.planned
        if progress.step >= _TOKEN_STEPS and known is not None:
            apart = abs(part - known.dataset_size) / known.dataset_size
            if apart > _TOKEN_ERROR:
                self._elastic.context.describe_again(max(1, round(part)))

    def report_epoch(self, *, is_pass: bool = False) -> None:
        """Reports the last complete epoch. `is_pass`: it was a pass over the data, just now."""
        if not self._is_reporting:
            return
        if is_pass and self._has_unknown_size:
            assert self._elastic is not None
            self._elastic.context.describe_again(max(1, self._progress.last.samples))
        assert self._elastic is not None
        assert self.reporter is not None
        progress, last = self._progress, self._progress.last
        planned = progress.planned
        self._elastic.context.report(
            Epoch(
                epoch=progress.reported,
                steps=last.steps,
                samples=last.samples,
                loss=as_measure(last.mean_loss),
                accuracy=as_measure(last.accuracy),
                first_loss=as_measure(progress.first_loss),
                step_seconds=self.reporter.take_epoch_step_seconds(),
                gradient_noise=as_measure(self._stepper.noise.scale),
                # more than can be reported: a loop without an end
                planned_epochs=planned if planned and planned <= MOST_EPOCHS else None,
                work=progress.work,
            )
        )

    def has_reached_limit(self) -> bool:
        """Whether a script that runs alone has done the steps, samples or tokens of its rule."""
        if self._stop is None or self._elastic is not None:
            return False
        progress = self._progress
        done = {Unit.STEPS: progress.base_steps, Unit.SAMPLES: progress.samples}
        return after_work(self._stop, done | {Unit.TOKENS: int(progress.tokens)}) is not None

    def is_stopped(self) -> bool:
        """Whether the stop rule of a script that runs alone ends it."""
        if self._stop is None or self._elastic is not None:
            return False
        last, progress = self._progress.last, self._progress
        progress.track, reason = after_epoch(
            self._stop, progress.track, loss=last.mean_loss, accuracy=last.accuracy
        )
        return reason is not None
