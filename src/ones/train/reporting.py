"""What the first worker tells the controller about the training itself."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable

import torch

from ones.train.formation import Formation
from ones.train.progress import Progress
from ones.wire.messages import Memory, Report, Speed, Steps

_STEPS_EVERY = 0.5  # seconds
_SPEED_EVERY = 10.0
_SKIPPED = 2  # steps after a change: they touch fresh memory and fill pipelines


class Reporter:
    """Times steps by configuration. Time outside the loop over batches does not count."""

    def __init__(self, say: Callable[[Report], None]) -> None:
        self._say = say
        self._last: float | None = None
        self._skip = _SKIPPED
        self._seconds, self._steps = 0.0, 0
        self._epoch_seconds, self._epoch_steps = 0.0, 0
        self._told_steps = self._told_speed = time.monotonic()

    def changed(self) -> None:
        """Another configuration from here on."""
        self._last, self._skip = None, _SKIPPED
        self._seconds, self._steps = 0.0, 0

    def epoch_begins(self) -> None:
        self._last = None

    def stepped(self, formation: Formation, progress: Progress, micro_batch: int) -> None:
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
        if clock - self._told_steps >= _STEPS_EVERY:
            self._told_steps = clock
            sums = progress.sums
            self._say(Steps(epoch=progress.epoch + 1, steps=sums.steps, samples=sums.samples))
        if clock - self._told_speed >= _SPEED_EVERY:
            self.tell_speed(formation)
            self._say(Memory(peak_bytes(), micro_batch))

    def tell_speed(self, formation: Formation) -> None:
        self._told_speed = time.monotonic()
        if self._steps and self._seconds:
            self._say(
                Speed(
                    gpus=len(formation.members),
                    nodes=formation.nodes,
                    batch=formation.batch,
                    micro_steps=max(member.micro_steps for member in formation.members),
                    step_seconds=self._seconds / self._steps,
                    steps=self._steps,
                )
            )
            self._seconds, self._steps = 0.0, 0

    def epoch_seconds_per_step(self) -> float | None:
        mean = self._epoch_seconds / self._epoch_steps if self._epoch_seconds else None
        self._epoch_seconds, self._epoch_steps = 0.0, 0
        return mean


def peak_bytes() -> int:
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
