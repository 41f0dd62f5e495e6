"""The clock of the live service: wall clock at start + monotonic time, never below the last logged
time.

Setting the wall clock has no effect while the service runs. If it was set back between two runs,
time continues from the last logged time.
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
        """Seconds since an arbitrary time, for durations only."""
        return self._monotonic()

    def until(self, at: float) -> float:
        """Seconds from now until `at`; 0 if it has passed."""
        return max(0.0, at - self.now())
