"""A lease: until when workers on a node may run, renewed by whoever manages the node.

A node that is frozen or cut off cannot be told to stop; so it has to stop by itself. The
manager writes the time into a file again and again, as long as the head of the cluster lets it;
ones-exec ends its workers when that time has passed. Times are of the clock that counts on
while the machine sleeps and is the same for all processes of a machine.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def renew(path: Path, until: float) -> None:
    """As a whole or not at all: a reader never sees half a time."""
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_text(f"{until!r}\n")
    beside.replace(path)


def left(path: Path) -> float:
    """Seconds; not above zero: it has run out, or there is none."""
    try:
        return float(path.read_text()) - now()
    except (OSError, ValueError):
        return 0.0
