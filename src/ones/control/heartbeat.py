"""Heartbeats of the controller's threads, by which `/health` finds a stuck one."""

from __future__ import annotations

import time
from collections.abc import Callable


class Heartbeat:
    """Notes when its thread begins a step. A thread that waits for work is never stuck."""

    def __init__(self, name: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._monotonic = monotonic
        self._busy_since: float | None = None  # None: the thread waits for work

    def working(self) -> None:
        self._busy_since = self._monotonic()

    def waiting(self) -> None:
        self._busy_since = None

    def busy_seconds(self) -> float:
        """Seconds since the thread's current step began; 0 if it waits for work."""
        since = self._busy_since
        return 0.0 if since is None else self._monotonic() - since
