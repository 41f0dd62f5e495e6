"""What `/health` says: whether every thread moves, writes arrive and the disk has room.

A problem means that the service does not do its work (503). A warning means that it does, but
not as it was told to: the fallback policy decides, or reports are quarantined.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

MB = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLimits:
    stuck_seconds: float = 30.0  # a thread that is busy with one thing for longer is stuck
    unwritten_seconds: float = 15.0  # an event that waits for longer to be written is late
    min_free_mb: float = 200.0  # of the disk that the state directory is on


class Health:
    """Reads what the threads leave behind; asks and locks nothing, so that it always answers.

    `busy`: the threads, and for how many seconds each has been at its present step."""

    def __init__(
        self,
        limits: HealthLimits,
        busy: Callable[[], Iterable[tuple[str, float]]],
        unwritten_seconds: Callable[[], float],
        directory: Path,
    ) -> None:
        self._limits, self._busy = limits, busy
        self._unwritten_seconds, self._directory = unwritten_seconds, directory

    def problems(self) -> list[str]:
        limits = self._limits
        found = [
            f"the {thread} thread is stuck: busy with one step for {seconds:.0f} s"
            for thread, seconds in self._busy()
            if seconds > limits.stuck_seconds
        ]
        late = self._unwritten_seconds()
        if late > limits.unwritten_seconds:
            found.append(f"the oldest event has waited {late:.0f} s to be written to the database")
        try:
            free = shutil.disk_usage(self._directory).free / MB
        except OSError as problem:
            return [*found, f"state directory {self._directory}: {problem.strerror}"]
        if free < limits.min_free_mb:
            found.append(
                f"disk of {self._directory}: {free:.0f} MB free, less than service.min_free_mb"
                f" {limits.min_free_mb:g}; remove old output or checkpoints"
            )
        return found
