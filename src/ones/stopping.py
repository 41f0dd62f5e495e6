"""When a job has trained enough: pure rules over its epochs.

The scheduler applies them to the epochs that a job reports; a script that runs
alone applies the same ones to itself. Nothing here knows who is asking.
"""

from __future__ import annotations

from enum import StrEnum
from math import isnan

from ones.wire.bounds import Number, Positive, Value


class StopReason(StrEnum):
    TARGET = "target"  # the accuracy asked for was exceeded for long enough
    PLATEAU = "plateau"  # no improvement for as long as the user's patience lasts
    EPOCHS = "epochs"  # as many epochs as were asked for


class StopRule(Value, frozen=True, kw_only=True):
    """All that are set apply; the first to hold ends the job. None set: the script's own end."""

    target_accuracy: float | None = None
    target_epochs: Positive = 1  # in a row above the target; the paper's evaluation takes 10
    patience: Positive | None = None  # epochs in a row without a better accuracy (or loss)
    max_epochs: Positive | None = None

    def __post_init__(self) -> None:
        if self.target_accuracy is not None and not 0.0 <= self.target_accuracy <= 1.0:
            raise ValueError(f"target_accuracy {self.target_accuracy} is not in 0..1")
        for name in ("target_epochs", "patience", "max_epochs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} {value} is not at least 1")


class Track(Value, frozen=True):
    """What a rule remembers from one epoch to the next."""

    epochs: Number = 0
    above: Number = 0  # epochs in a row above the target
    stale: Number = 0  # epochs in a row without improvement
    best: float | None = None  # higher is better: accuracy, or the negative loss


def after_epoch(
    rule: StopRule, track: Track, *, loss: float | None, accuracy: float | None
) -> tuple[Track, StopReason | None]:
    """The track with one more epoch in it, and the reason to stop, if there is one.

    >>> rule = StopRule(target_accuracy=0.8, target_epochs=2)
    >>> track, reason = after_epoch(rule, Track(), loss=1.0, accuracy=0.85)
    >>> after_epoch(rule, track, loss=0.9, accuracy=0.82)[1]
    <StopReason.TARGET: 'target'>
    """
    above = track.above
    if rule.target_accuracy is not None:
        above = above + 1 if accuracy is not None and accuracy > rule.target_accuracy else 0
    best, stale = track.best, track.stale
    if rule.patience is not None:
        merit = accuracy if accuracy is not None else (None if loss is None else -loss)
        if merit is not None:
            better = not isnan(merit) and (best is None or merit > best)
            best, stale = (merit, 0) if better else (best, stale + 1)
    after = Track(track.epochs + 1, above, stale, best)
    if rule.target_accuracy is not None and above >= rule.target_epochs:
        return after, StopReason.TARGET
    if rule.patience is not None and stale >= rule.patience:
        return after, StopReason.PLATEAU
    if rule.max_epochs is not None and after.epochs >= rule.max_epochs:
        return after, StopReason.EPOCHS
    return after, None
