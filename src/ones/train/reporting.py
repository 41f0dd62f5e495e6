"""Reports of rank 0 to the controller about training: steps, speed, memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

from ones.train.layout import GroupLayout
from ones.train.memory import available_bytes, peak_bytes, reset_peak, samples_that_fit
from ones.train.progress import TrainingProgress
from ones.wire.bounds import MOST_EPOCHS, as_measure
from ones.wire.messages import Memory, Report, Speed, Steps

_STEPS_INTERVAL = 0.5  # seconds
_SPEED_INTERVAL = 10.0
_FIRST_STEPS = 20  # of a new layout: its speed is reported after them; as `sim.MEASURED_STEPS`
_FEWEST_STEPS = 5  # the mean of fewer is mostly chance, unless they took `_SPEED_INTERVAL`
_NOISE_INTERVAL = 60.0  # an epoch may take hours
_CPU = torch.device("cpu")
_SKIPPED = 2  # steps after a change, which are slower than others


class Reporter:
    """Times the steps of a layout.

    Not counted: time outside the loop over batches, the first steps of a layout, and steps in which
    state was sent or a checkpoint saved.
    """

    def __init__(
        self,
        report: Callable[[Report], None],
        device: torch.device = _CPU,
        known_limit: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`known_limit`: samples that fit, by the script or since memory ran out."""
        self._report, self._device, self._known_limit = report, device, known_limit
        self._last: float | None = None
        self._skip = _SKIPPED
        self._seconds, self._steps = 0.0, 0
        self._epoch_seconds, self._epoch_steps = 0.0, 0
        self._planned: int | None = None  # epochs that were reported
        self._has_reported = False  # the speed of this layout
        self._micro_batch = 0  # the largest of this layout
        self._peaks: dict[int, int] = {}  # maximum bytes by micro-batch
        self._is_limited = False  # a memory limit was reported
        self._workers: tuple[str, ...] = ()  # of this layout
        self._changed_at: float | None = None  # until the first step with other workers
        self._first_step: float | None = None  # its seconds, until they are reported
        self._steps_reported = self._speed_reported = self._noise_reported = time.monotonic()

    def reset(self, layout: GroupLayout) -> None:
        """Starts again, for another layout: no mean is over steps of two layouts."""
        is_move = bool(self._workers) and layout.workers != self._workers
        # a group that was formed again after a loss is no change that a policy could avoid
        is_timed = is_move and layout.incarnation == 0
        self._workers = layout.workers
        self._changed_at, self._first_step = time.perf_counter() if is_timed else None, None
        self._last, self._skip = None, _SKIPPED
        self._seconds, self._steps = 0.0, 0
        self._epoch_seconds, self._epoch_steps = 0.0, 0
        self._has_reported = False
        self._micro_batch = 0
        self._speed_reported = time.monotonic()

    def start_epoch(self) -> None:
        self._last = None

    def after_step(
        self,
        layout: GroupLayout,
        progress: TrainingProgress,
        micro_batch: int,
        noise: float | None = None,
        *,
        is_disturbed: bool = False,
    ) -> None:
        """Reports what is due. `noise`: the gradient noise scale in samples, if it is known.

        `is_disturbed`: the worker also sent state or saved a checkpoint in this step.
        """
        now = time.perf_counter()
        last, self._last = self._last, now
        if self._changed_at is not None:
            self._first_step, self._changed_at = now - self._changed_at, None
        if last is not None and not is_disturbed:
            if self._skip:
                self._skip -= 1
            else:
                self._add(now - last)
        if micro_batch > self._micro_batch:  # the maximum is over the steps with the largest
            self._micro_batch = micro_batch
            reset_peak(self._device)
        clock = time.monotonic()
        if clock - self._steps_reported >= _STEPS_INTERVAL:
            self._steps_reported = clock
            if clock - self._noise_reported < _NOISE_INTERVAL:
                noise = None
            elif noise is not None:
                self._noise_reported = clock
            sums = progress.sums
            self._report(
                Steps(
                    epoch=progress.reported + 1,
                    steps=sums.steps,
                    samples=sums.samples,
                    gradient_noise=as_measure(noise),
                    planned_epochs=self._news(progress),
                    work=progress.work,
                )
            )
        is_first_due = not self._has_reported and self._steps >= _FIRST_STEPS
        if is_first_due or clock - self._speed_reported >= _SPEED_INTERVAL:
            self.report_speed(layout)
            self._report_memory()

    def _report_memory(self) -> None:
        """Reports the maximum of the present micro-batch, and what fits if that is little."""
        size, peak = self._micro_batch, peak_bytes(self._device)
        if size:
            self._peaks[size] = max(peak, self._peaks.get(size, 0))
        limit = samples_that_fit(self._peaks, available_bytes(self._device))
        if limit is not None:
            # the controller tries at most twice what has fitted anyway
            most = min(self._known_limit() or sys.maxsize, 2 * max(self._peaks))
            self._is_limited |= limit < most
            limit = min(limit, most) if self._is_limited else None
        self._report(Memory(peak, size, limit))

    def _news(self, progress: TrainingProgress) -> int | None:
        """The planned epochs, once after they have changed; more than can be sent: no end."""
        planned = progress.planned
        if planned is None or planned > MOST_EPOCHS or planned == self._planned:
            return None
        self._planned = planned
        return planned

    def _add(self, seconds: float) -> None:
        self._seconds += seconds
        self._steps += 1
        self._epoch_seconds += seconds
        self._epoch_steps += 1

    def report_speed(self, layout: GroupLayout) -> None:
        """Reports the mean of the steps since the last report; too few of them are kept for the
        next one."""
        self._speed_reported = time.monotonic()
        if self._seconds and (self._steps >= _FEWEST_STEPS or self._seconds >= _SPEED_INTERVAL):
            self._has_reported = True
            first, self._first_step = self._first_step, None
            plain = self._seconds / self._steps
            self._report(
                Speed(
                    gpus=len(layout.members),
                    nodes=layout.nodes,
                    batch=layout.batch,
                    micro_steps=max(member.micro_steps for member in layout.members),
                    step_seconds=plain,
                    steps=self._steps,
                    first_step_extra_seconds=None if first is None else max(0.0, first - plain),
                )
            )
            self._seconds, self._steps = 0.0, 0

    def take_epoch_step_seconds(self) -> float | None:
        """Mean seconds per counted step since the last call or change of the layout."""
        mean = self._epoch_seconds / self._epoch_steps if self._epoch_seconds else None
        self._epoch_seconds, self._epoch_steps = 0.0, 0
        return mean
