"""Reports of rank 0 to the controller about training: steps, speed, memory."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable

import torch

from ones.train.layout import GroupLayout
from ones.train.progress import TrainingProgress
from ones.wire.bounds import as_measure
from ones.wire.messages import Memory, Report, Speed, Steps

_STEPS_INTERVAL = 0.5  # seconds
_SPEED_INTERVAL = 10.0
_NOISE_INTERVAL = 60.0  # an epoch may take hours
_SKIPPED = 2  # steps after a change, which are slower than others


class Reporter:
    """Times the steps of a layout. Time outside the loop over batches does not count."""

    def __init__(self, report: Callable[[Report], None]) -> None:
        self._report = report
        self._last: float | None = None
        self._skip = _SKIPPED
        self._seconds, self._steps = 0.0, 0
        self._epoch_seconds, self._epoch_steps = 0.0, 0
        self._steps_reported = self._speed_reported = self._noise_reported = time.monotonic()

    def reset(self) -> None:
        """Starts again, for another layout."""
        self._last, self._skip = None, _SKIPPED
        self._seconds, self._steps = 0.0, 0

    def start_epoch(self) -> None:
        self._last = None

    def after_step(
        self,
        layout: GroupLayout,
        progress: TrainingProgress,
        micro_batch: int,
        noise: float | None = None,
    ) -> None:
        """Reports what is due. `noise`: the gradient noise scale in samples, if it is known."""
        now = time.perf_counter()
        last, self._last = self._last, now
        if last is not None:
            self._epoch_seconds += now - last
            self._epoch_steps += 1
            if self._skip:
                self._skip -= 1
            else:
                self._seconds += now - last
                self._steps += 1
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
                    epoch=progress.epoch + 1,
                    steps=sums.steps,
                    samples=sums.samples,
                    gradient_noise=as_measure(noise),
                )
            )
        if clock - self._speed_reported >= _SPEED_INTERVAL:
            self.report_speed(layout)
            self._report(Memory(peak_bytes(), micro_batch))

    def report_speed(self, layout: GroupLayout) -> None:
        self._speed_reported = time.monotonic()
        if self._steps and self._seconds:
            self._report(
                Speed(
                    gpus=len(layout.members),
                    nodes=layout.nodes,
                    batch=layout.batch,
                    micro_steps=max(member.micro_steps for member in layout.members),
                    step_seconds=self._seconds / self._steps,
                    steps=self._steps,
                )
            )
            self._seconds, self._steps = 0.0, 0

    def take_epoch_step_seconds(self) -> float | None:
        """Mean seconds per step since the last call."""
        mean = self._epoch_seconds / self._epoch_steps if self._epoch_seconds else None
        self._epoch_seconds, self._epoch_steps = 0.0, 0
        return mean


def peak_bytes() -> int:
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
