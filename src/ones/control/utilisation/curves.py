"""Curves of a job's workers with bounded memory: when they are full, their resolution is halved."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from math import isnan, nan

from ones.wire.samples import SAMPLE_SECONDS, SlotSample

#: points of a curve
MOST_POINTS = 120
#: curves that are kept of slots on which the job has no worker any more
MOST_FORMER = 32
#: name of a curve -> its value in a sample
CURVES = ("utilisation", "memory_mb", "power_watts", "cpus")


@dataclass(slots=True)
class _SlotCurves:
    """The curves of one slot. `last`: index of the newest point, a mean of `samples` samples."""

    values: dict[str, array[float]] = field(
        default_factory=lambda: {name: array("f") for name in CURVES}
    )
    last: int = -1
    samples: int = 0

    def add(self, index: int, sample: SlotSample) -> None:
        self.samples = self.samples + 1 if index == self.last else 1
        self.last = index
        for name, values in self.values.items():
            if len(values) <= index:
                values.extend([nan] * (index + 1 - len(values)))
            new = getattr(sample, name)
            if new is not None:
                old = values[index]
                values[index] = new if isnan(old) else old + (new - old) / self.samples

    def halve(self) -> None:
        for name, values in self.values.items():
            pairs = zip(values[::2], [*values[1::2], nan][: len(values[::2])], strict=True)
            self.values[name] = array("f", [_mean(one, other) for one, other in pairs])
        self.last, self.samples = self.last // 2, 1


def _mean(one: float, other: float) -> float:
    if isnan(one) or isnan(other):
        return other if isnan(one) else one
    return (one + other) / 2.0


class JobCurves:
    """`begin` is the time of the first sample, `seconds` the time between two points."""

    def __init__(self, begin: float) -> None:
        self.begin, self.seconds = begin, SAMPLE_SECONDS
        self.slots: dict[str, _SlotCurves] = {}
        self.version = 0

    def add(self, at: float, sample: SlotSample) -> None:
        self.version += 1
        index = max(0, int((at - self.begin) / self.seconds))
        while index >= MOST_POINTS:
            for curves in self.slots.values():
                curves.halve()
            self.seconds *= 2.0
            index = int((at - self.begin) / self.seconds)
        self.slots.setdefault(sample.slot, _SlotCurves()).add(index, sample)

    def drop_former(self, present: set[str]) -> None:
        """Drops the curves that ended first of slots without a worker of the job."""
        former = [slot for slot in self.slots if slot not in present]
        former.sort(key=lambda slot: self.slots[slot].last)
        for slot in former[: max(0, len(former) - MOST_FORMER)]:
            del self.slots[slot]

    def times(self) -> list[float]:
        last = max((curves.last for curves in self.slots.values()), default=-1)
        return [self.begin + (index + 0.5) * self.seconds for index in range(last + 1)]

    def values(self, slot: str, name: str, count: int) -> list[float | None]:
        """`count` points of a curve; None: no sample."""
        known = self.slots[slot].values[name]
        points = [None if isnan(value) else value for value in known[:count]]
        return points + [None] * (count - len(points))
