"""λ, the average arrival rate of jobs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

#: gaps between arrivals that make up the window, and arrivals before which λ is 0
GAPS, FEWEST = 20, 5


class ArrivalRate:
    """Arrivals within a window that is as long as the last 20 gaps together, over that window.

    While jobs arrive, this is one over the mean gap. When arrivals stop, the rate falls linearly
    to 0 while the window passes. Before 5 arrivals it is 0.

    >>> rate = ArrivalRate()
    >>> for at in range(0, 300, 10):
    ...     rate.add(float(at))
    >>> rate.at(290.0), rate.at(390.0), rate.at(490.0)
    (0.1, 0.05, 0.0)
    """

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=GAPS + 1)

    def add(self, at: float) -> None:
        self._times.append(at)

    def at(self, now: float) -> float:
        """Jobs per second."""
        if len(self._times) < FEWEST:
            return 0.0
        window = max(self._times[-1] - self._times[0], 1.0)
        return sum(time > now - window for time in self._times) / window

    def save(self) -> list[float]:
        return list(self._times)

    def load(self, saved: Iterable[float]) -> None:
        self._times = deque(map(float, saved), maxlen=GAPS + 1)
