"""Recorded runs of the paper's authors: a kind of job in one size, with its accuracy by epoch.

The run ends by the joint stop rule (`StopRule.joint`). The curve is piecewise linear through the
recorded points, and bent where the rule must see it: the last epoch that does not count is
`epochs - patience`, so the accuracy rises by more than the least gain there and by less afterwards.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache

MIN_GAIN = 0.01  # least rise of the best accuracy that resets the counter of the stop rule
_POINTS = (1, 2, 5, 10, 20, 40)  # epochs after which the accuracy is known
_LEAST_RISE = 0.02  # between two points: a flat stretch would end slower runs too early
_SPIKE_EPOCHS = 0.5  # in which an untrained loss falls to that of guessing


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedType:
    """One of the types of job of the authors' trace."""

    kind: str
    dataset_size: int
    classes: int
    epochs: int  # until the stop rule ends the job
    best_accuracy: float
    accuracy: tuple[float, ...]  # after 1, 2, 5, 10, 20, 40 epochs
    first_loss: float
    last_loss: float
    seconds: float  # of all epochs at the requested GPUs, without start-up and evaluation
    target_epoch: int | None = None  # first with the target accuracy; None: never
    run: int = 0  # number of the run, if there are several of one kind and size


@dataclass(frozen=True, slots=True)
class TrainingCurve:
    """Accuracy and loss of a recorded type over effective epochs."""

    recorded: RecordedType
    epochs: tuple[float, ...]
    accuracies: tuple[float, ...]

    def accuracy(self, progress: float) -> float:
        at = bisect_right(self.epochs, progress)
        if at == len(self.epochs):
            return self.accuracies[-1]
        before, after = self.epochs[at - 1], self.epochs[at]
        part = (progress - before) / (after - before)
        return self.accuracies[at - 1] + part * (self.accuracies[at] - self.accuracies[at - 1])

    def loss(self, progress: float) -> float:
        run = self.recorded
        guessing = min(run.first_loss, math.log(max(2, run.classes)))
        learned = (guessing - run.last_loss) * math.exp(-3 * progress / run.epochs)
        untrained = (run.first_loss - guessing) * math.exp(-progress / _SPIKE_EPOCHS)
        return run.last_loss + learned + untrained


@lru_cache(maxsize=64)
def curve_of(run: RecordedType, target: float, patience: int) -> TrainingCurve:
    """The curve that ends after `run.epochs` under the joint rule with this target and patience."""
    first = 0.5 if run.classes == 2 else 0.001  # a guess; the outputs of the other nets are 1,000
    last_rise = run.epochs - patience
    points = [(0.0, first)]
    if last_rise > 0:
        top = target - 0.002 if run.target_epoch else run.best_accuracy - 0.008
        below = top - 1.05 * MIN_GAIN
        for epoch, accuracy in zip(_POINTS, run.accuracy, strict=False):
            if epoch < last_rise - 1 and points[-1][1] + _LEAST_RISE <= accuracy <= below:
                points.append((epoch, accuracy))
        if last_rise > 1:
            points.append((last_rise - 1, below))
        points.append((last_rise, top))
    if run.target_epoch:
        points.append((run.target_epoch, target))
    points.append((run.epochs, max(run.best_accuracy, points[-1][1])))
    return TrainingCurve(run, *map(tuple, zip(*points, strict=True)))
