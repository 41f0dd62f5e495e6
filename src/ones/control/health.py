"""Health checks for `/health`: stuck threads, late writes, free disk space.

A problem means that the service does not work (503). A warning means that it works, but not as
configured: the fallback policy decides, or reports are quarantined.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

MB = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLimits:
    stuck_seconds: float = 30.0  # maximum time of a thread for one step
    unwritten_seconds: float = 15.0  # maximum time of an event until it is written
    min_free_mb: float = 200.0  # on the disk of the state directory


class Health:
    """Reads values that the threads leave behind. It takes no lock, so it always answers.

    `busy`: the threads, each with the seconds since its current step began.
    """

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
