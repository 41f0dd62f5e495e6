"""Stop rules: decide whether a job has trained enough.

The scheduler applies them to what a job reports. A script that runs alone applies the
same rules to itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from math import inf, isnan

from ones.wire.bounds import Number, Positive, Value
from ones.wire.work import Unit


class StopReason(StrEnum):
    TARGET = "target"  # accuracy above `target_accuracy` for `target_epochs` epochs in a row
    PLATEAU = "plateau"  # no improvement for `patience` epochs in a row
    EPOCHS = "epochs"  # `max_epochs` epochs are done
    STEPS = "steps"  # `max_steps` steps are done
    SAMPLES = "samples"  # `max_samples` samples are done
    TOKENS = "tokens"  # `max_tokens` tokens are done

    @property
    def is_extent(self) -> bool:
        """Whether the job has done what it was to do, whatever it has reached."""
        return self not in (StopReason.TARGET, StopReason.PLATEAU)


class StopRule(Value, frozen=True, kw_only=True):
    """Conditions that end a job: the first one that is met. None set: the script ends by itself.

    `joint`: target and patience share one counter, as in the prototype of the paper's authors. An
    epoch counts if it reaches the target or does not raise the best accuracy by `min_gain`; any
    other epoch resets the counter; the job ends when `patience` epochs in a row count.
    """

    target_accuracy: float | None = None
    target_epochs: Positive = 1  # in a row above the target; the paper's evaluation takes 10
    patience: Positive | None = None  # epochs in a row without a better accuracy (or loss)
    max_epochs: Positive | None = None
    max_steps: Positive | None = None  # of the script's own batch size
    max_samples: Positive | None = None
    max_tokens: Positive | None = None  # of a job that counts tokens
    joint: bool = False  # `target_epochs` has no effect then
    min_gain: float = 0.0  # least rise of the accuracy (or fall of the loss) that is a gain

    def __post_init__(self) -> None:
        if self.target_accuracy is not None and not 0.0 <= self.target_accuracy <= 1.0:
            raise ValueError(f"target_accuracy {self.target_accuracy} is not in 0..1")
        for name in (
            *("target_epochs", "patience", "max_epochs"),
            *("max_steps", "max_samples", "max_tokens"),
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} {value} is not at least 1")
        if not 0.0 <= self.min_gain < inf:
            raise ValueError(f"min_gain {self.min_gain} is not a number of at least 0")
        if self.joint and self.patience is None:
            raise ValueError("joint needs a patience")

    def limit(self, unit: Unit) -> int | None:
        """The amount after which the job ends."""
        limits = {
            Unit.EPOCHS: self.max_epochs,
            Unit.STEPS: self.max_steps,
            Unit.SAMPLES: self.max_samples,
            Unit.TOKENS: self.max_tokens,
        }
        return limits[unit]


class Track(Value, frozen=True):
    """The state of a stop rule between two epochs."""

    epochs: Number = 0
    above: Number = 0  # epochs in a row above the target
    stale: Number = 0  # epochs in a row without improvement; of a joint rule: that count
    best: float | None = None  # higher is better: accuracy, or the negative loss


def after_epoch(
    rule: StopRule, track: Track, *, loss: float | None, accuracy: float | None
) -> tuple[Track, StopReason | None]:
    """The track after one more epoch, and the reason to stop, if there is one.

    >>> rule = StopRule(target_accuracy=0.8, target_epochs=2)
    >>> track, reason = after_epoch(rule, Track(), loss=1.0, accuracy=0.85)
    >>> after_epoch(rule, track, loss=0.9, accuracy=0.82)[1]
    <StopReason.TARGET: 'target'>
    """
    target, epochs = rule.target_accuracy, track.epochs + 1
    reached = target is not None and accuracy is not None and _reaches(rule, accuracy, target)
    above = track.above if target is None else track.above + 1 if reached else 0
    best, stale = track.best, track.stale
    if rule.patience is not None:
        merit = accuracy if accuracy is not None else (None if loss is None else -loss)
        if merit is not None:
            better = not isnan(merit) and (best is None or _gains(rule, merit, best))
            best = merit if better else best
            stale = 0 if better and not (rule.joint and reached) else stale + 1
    after = Track(epochs, above, stale, best)
    if rule.joint:
        if rule.patience is not None and stale >= rule.patience:
            return after, StopReason.TARGET if reached else StopReason.PLATEAU
    elif target is not None and above >= rule.target_epochs:
        return after, StopReason.TARGET
    elif rule.patience is not None and stale >= rule.patience:
        return after, StopReason.PLATEAU
    if rule.max_epochs is not None and epochs >= rule.max_epochs:
        return after, StopReason.EPOCHS
    return after, None


def after_work(rule: StopRule, done: Mapping[Unit, float]) -> StopReason | None:
    """The reason to stop after so much work in each known unit. Epochs are `after_epoch`'s.

    >>> after_work(StopRule(max_steps=100), {Unit.STEPS: 100, Unit.SAMPLES: 1600})
    <StopReason.STEPS: 'steps'>
    """
    for unit in (Unit.STEPS, Unit.SAMPLES, Unit.TOKENS):
        limit = rule.limit(unit)
        if limit is not None and done.get(unit, 0.0) >= limit:
            return StopReason(unit.value)
    return None


def _reaches(rule: StopRule, accuracy: float, target: float) -> bool:
    return accuracy >= target if rule.joint else accuracy > target


def _gains(rule: StopRule, merit: float, best: float) -> bool:
    return merit >= best + rule.min_gain if rule.min_gain else merit > best
