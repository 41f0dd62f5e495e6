"""Signs of life of the controller's threads, from which `/health` tells a stuck one."""

from __future__ import annotations

import time
from collections.abc import Callable


class Heartbeat:
    """Beats whenever its thread begins a piece of work; a thread that waits for work is well."""

    def __init__(self, name: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._monotonic = monotonic
        self._busy_since: float | None = None  # None: it waits for work

    def working(self) -> None:
        self._busy_since = self._monotonic()

    def waiting(self) -> None:
        self._busy_since = None

    def busy_seconds(self) -> float:
        """How long the thread has been at its present piece of work."""
        since = self._busy_since
        return 0.0 if since is None else self._monotonic() - since
