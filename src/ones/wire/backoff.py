"""Pauses between attempts to reach a controller. They differ, so that after its restart the workers
and agents do not all call at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from random import Random


class Backoff:
    """Pauses that double from `first` to `longest`; each is drawn from its upper half.

    The draws do not touch the random state of the training script.
    """

    def __init__(
        self, first: float, longest: float, draw: Callable[[], float] | None = None
    ) -> None:
        self._first, self._longest = first, longest
        self._draw = Random().random if draw is None else draw
        self._pause = first

    def reset(self) -> None:
        """After a success: the next pause is a first one."""
        self._pause = self._first

    def next(self) -> float:
        """Seconds until the next attempt."""
        pause = self._pause
        self._pause = min(2 * pause, self._longest)
        return pause * (0.5 + 0.5 * self._draw())
