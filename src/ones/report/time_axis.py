"""The time axis of a chart: its range and unit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ones.report.timeline import RunTimeline

_UNITS = (  # maximum seconds, unit, symbol, seconds per unit
    (300.0, "seconds", "s", 1.0),
    (3 * 3600.0, "minutes", "min", 60.0),
    (4 * 86400.0, "hours", "h", 3600.0),
    (float("inf"), "days", "d", 86400.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAxis:
    """`begin` and `length` in seconds of the log; `begin` is the chart's zero."""

    begin: float
    length: float
    unit: str
    symbol: str
    seconds: float  # in one unit

    @classmethod
    def of(cls, timelines: Iterable[RunTimeline]) -> TimeAxis:
        """One axis for all runs. It starts at 0, unless the first event is later than the run is
        long (as in logs with times since 1970)."""
        shown = list(timelines)
        first, last = min(t.begin for t in shown), max(t.end for t in shown)
        begin = 0.0 if 0.0 <= first <= last - first else first
        length = last - begin or 1.0
        _, unit, symbol, seconds = next(u for u in _UNITS if length <= u[0])
        return cls(begin=begin, length=length, unit=unit, symbol=symbol, seconds=seconds)

    @property
    def title(self) -> str:
        return f"time since the {'start' if self.begin == 0.0 else 'first event'} ({self.unit})"

    @property
    def units(self) -> float:
        """The length, in units."""
        return self.length / self.seconds

    def place(self, at: float) -> float:
        return (at - self.begin) / self.seconds

    def format(self, seconds: float) -> str:
        """A duration in the axis' unit, as `24.4 min`."""
        return f"{seconds / self.seconds:.3g} {self.symbol}"
