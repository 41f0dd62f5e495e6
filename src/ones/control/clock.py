"""Time of the live service: wall clock at start + monotonic, never below the last logged time.

A wall clock that is set, forwards or back, changes nothing while we run; after one that was set
back between two runs, time goes on from where it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    def __init__(
        self,
        not_before: float = 0.0,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._offset = max(wall(), not_before) - monotonic()
        self._last = not_before

    def now(self) -> float:
        self._last = max(self._last, self._offset + self._monotonic())
        return self._last

    def monotonic(self) -> float:
        """Seconds from some moment on, for durations only."""
        return self._monotonic()

    def until(self, at: float) -> float:
        """Seconds from now to then; 0 if it has passed."""
        return max(0.0, at - self.now())
