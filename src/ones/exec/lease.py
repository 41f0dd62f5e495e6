"""A lease: the time until which workers may run on a node, renewed by the node's agent.

A node that is frozen or cut off receives no request to stop, so it must stop by itself. The agent
writes the time to a file at regular intervals, as long as the controller allows it; ones-exec kills
its workers when that time has passed. The clock is CLOCK_BOOTTIME, which continues during suspend
and is the same for all processes of a machine.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def renew(path: Path, until: float) -> None:
    """Writes the time at which the lease expires, atomically."""
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(f"{until!r}\n")
    temporary.replace(path)


def remaining(path: Path) -> float:
    """Seconds until the lease expires; 0 or less if it has expired or does not exist."""
    try:
        return float(path.read_text()) - now()
    except (OSError, ValueError):
        return 0.0
